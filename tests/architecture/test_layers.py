"""Imports go downward only (DESIGN 3); import-linter holds the contracts in pyproject.toml."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_import_contracts_are_kept() -> None:
    lint_imports = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run(
        [lint_imports, "--no-cache"], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 kept, 0 broken" in done.stdout


def test_cores_load_without_torch_sockets_or_databases() -> None:
    """Importing every core module of chain, da and storage loads no shell and no heavy library."""
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for package in ("chain", "da", "storage")
        for path in sorted((ROOT / package / "core").rglob("*.py"))
        if path.name != "__init__.py"
    ]
    script = (
        "import importlib, sys\n"
        f"for name in {modules!r}: importlib.import_module(name)\n"
        "loaded = {'torch', 'aiohttp', 'lmdb', 'web3', 'typer'} & set(sys.modules)\n"
        "assert not loaded, sorted(loaded)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert modules
    assert done.returncode == 0, done.stderr
