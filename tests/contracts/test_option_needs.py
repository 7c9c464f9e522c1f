"""Options that need another one, of every command line: found by their help, refused without it at once."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from contracts.bindings.option_needs import check_needs

MODULES = ("chain.cli", "da.cli", "localnet.cli", "storage.cli", "storage.node_cli", "training.cli")
WITH = re.compile(r"With (--[a-z-]+)")


def _find_needs() -> Iterator[tuple[str, tuple[str, ...], str, str]]:
    """Yield (module, command, option, the option that it needs)."""

    def walk(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
        for name, child in getattr(command, "commands", {}).items():
            yield from walk(child, (*path, name))
        if not hasattr(command, "commands"):
            yield path, command

    for module in MODULES:
        app = importlib.import_module(module).app
        for path, command in walk(typer.main.get_command(app), ()):
            for option in command.params:
                found = WITH.match(getattr(option, "help", None) or "")
                if found:
                    yield module, path, option.opts[0], found[1]


NEEDS = list(_find_needs())


def _fill(command: Any, option: str) -> list[str]:
    """Return arguments with a value for what is required and for ``option``."""
    arguments: list[str] = []
    for each in command.params:
        is_wanted = option in each.opts
        if not (each.required or is_wanted):
            continue
        value = "ab" * 32 if "hash" in each.opts[0] else "7"  # a number, a path and a text
        if each.param_type_name == "argument":
            arguments.append(value)
        else:
            arguments += [each.opts[0]] if each.is_flag else [each.opts[0], value]
    return arguments


def test_needs_are_found() -> None:
    found = {(path[-1], option) for _, path, option, _ in NEEDS}
    assert found >= {
        ("verify", "--trust-height"),
        ("join", "--trust-hash"),
        ("status", "--genesis"),
        ("reset", "--server"),
    }


@pytest.mark.parametrize("need", NEEDS, ids=lambda need: " ".join((need[0], *need[1], need[2])))
def test_an_option_without_the_one_it_needs_is_refused(
    need: tuple[str, tuple[str, ...], str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    module, path, option, other = need
    app = importlib.import_module(module).app
    command = typer.main.get_command(app)
    for name in path:
        command = command.commands[name]
    result = CliRunner().invoke(app, [*path, *_fill(command, option)], env={"COLUMNS": "200"})
    assert result.exit_code == 2, result.output
    assert re.search(f"{option}.* needs? {other}", result.output), result.output
    assert list(tmp_path.iterdir()) == []


def test_half_a_hash_is_no_hash() -> None:
    from chain.cli import app

    for command in (
        ["verify", "--chain", "http://127.0.0.1:9", "--run", "1"],
        ["join", "--server", "http://127.0.0.1:9"],
    ):
        arguments = [*command, "--trust-height", "10", "--trust-hash", "abc"]
        result = CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})
        assert (result.exit_code, "expected 64 hex digits" in result.output) == (2, True), result.output


def test_both_or_neither_are_taken() -> None:
    check_needs("--a", "", "--b", "")
    check_needs("--a", "x", "--b", "y")
    with pytest.raises(typer.BadParameter, match="--a needs --b"):
        check_needs("--a", "x", "--b", "")
