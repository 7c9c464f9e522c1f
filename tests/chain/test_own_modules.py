"""Our processes run our code, wherever they are started."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from chain.own_modules import ROOT, make_command


def run_in(folder: Path, environment: dict[str, str]) -> str:
    command = make_command("chain.cli", "--version")
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=True
    ).stdout


def test_a_folder_with_our_names_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody's own ``chain`` package, or a module named as one of Python's, lies where the node is started."""
    (tmp_path / "chain").mkdir()
    for name in ("chain/__init__.py", "chain/cli.py", "socket.py"):
        (tmp_path / name).write_text("raise SystemExit('somebody else')")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("PYTHONSAFEPATH", None)
    monkeypatch.chdir(ROOT)
    expected = run_in(ROOT, environment)
    monkeypatch.chdir(tmp_path)
    assert run_in(tmp_path, environment) == expected


def test_a_source_tree_that_is_not_installed_runs_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert make_command("chain.cli")[1] == "-m"


def test_a_folder_that_was_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    assert make_command("chain.cli")[1] == "-Pm"
