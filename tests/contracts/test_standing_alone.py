"""A run, an owner or a node's URL may stand without its option's name."""

from __future__ import annotations

from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from contracts.bindings.standing_alone import MAIN_OPTIONS, StandingAlone, take_alone
from storage.cli import app as storage
from storage.node_cli import app as storage_node
from training.cli import app as trainer

app = typer.Typer()
group = typer.Typer()
app.add_typer(group, name="run")


@group.command("show")
def show(run: Annotated[int, typer.Option("--run", min=1)], every: Annotated[int, typer.Option()] = 3) -> None:
    """Print what came."""
    print(f"{run} {every}")


@app.command("fund")
def fund(amount: Annotated[str, typer.Argument()], run: Annotated[int, typer.Option("--run")]) -> None:
    """Print what came."""
    print(f"{amount} {run}")


take_alone(app)


@pytest.mark.parametrize(
    ("line", "printed"),
    [
        ("run show 7", "7 3"),
        ("run show --run 7", "7 3"),
        ("run show --every 7 7", "7 7"),
        ("run show 5 --every 7", "5 7"),
        ("fund 5 --run 7", "5 7"),
    ],
)
def test_both_forms_mean_the_same(line: str, printed: str) -> None:
    result = CliRunner().invoke(app, line.split())
    assert (result.exit_code, result.output.strip()) == (0, printed)


@pytest.mark.parametrize(
    "line", ["run show", "run show 5 7", "run show --run 5 7", "run show none", "run show 0", "fund 5 7", "fund 5"]
)
def test_invalid_forms_are_refused_as_before(line: str) -> None:
    assert CliRunner().invoke(app, line.split()).exit_code == 2


def test_commands_of_people_take_both_forms() -> None:
    """Whatever has a main option and no argument; no class of another kind is in the way."""

    def names_of(each: typer.Typer) -> list[str]:
        names = []
        for command in each.registered_commands:
            assert command.cls is StandingAlone
            names.append(command.name or getattr(command.callback, "__name__", ""))
        for inner in each.registered_groups:
            assert inner.typer_instance is not None
            names += names_of(inner.typer_instance)
        return names

    assert {"show", "watch", "status", "pull"} <= set(names_of(trainer))
    assert "ls" in names_of(storage)
    assert "status" in names_of(storage_node)
    nowhere = "http://127.0.0.1:1"
    for command, line in (
        (trainer, ["run", "show", "99", "--chain", nowhere]),
        (trainer, ["watch", "99", "--once", "--chain", nowhere]),
        (storage, ["ls", "0x" + "11" * 20, "--chain", nowhere]),
        (storage_node, ["status", nowhere]),
    ):
        result = CliRunner().invoke(command, line)
        assert result.exit_code not in (0, 2), "understood, and the chain asked"
    assert set(MAIN_OPTIONS) == {"--run", "--owner", "--url"}
