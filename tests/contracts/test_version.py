"""Every command says its version, and still what it is for."""

from __future__ import annotations

from importlib.metadata import entry_points, version

import pytest
import typer
from typer.testing import CliRunner

COMMANDS = {
    entry.name: entry
    for entry in entry_points(group="console_scripts")
    if entry.dist and entry.dist.name == "archipelago"
}


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_tells_its_version(name: str) -> None:
    app = __import__(COMMANDS[name].module, fromlist=["app"]).app
    assert isinstance(app, typer.Typer)
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.stdout) == (0, f"archipelago {version('archipelago')}\n")
    assert str(app.info.help) in CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"}).stdout
