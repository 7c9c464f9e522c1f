"""`--version` for every command."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated

import typer


def _show_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"archipelago {version('archipelago')}")
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and end.")
]


def add_version(app: typer.Typer) -> None:
    """Give a command line `--version`; its help stays its own."""

    @app.callback()
    def start(is_wanted: Version = False) -> None:
        pass
