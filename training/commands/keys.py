"""``trainer keys``: key files of owners and workers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from contracts.bindings.keys import address_of, create_key, load_key
from training.commands.options import JsonOption
from training.commands.output import STDOUT, print_json

app = typer.Typer(help="Make and show key files.", no_args_is_help=True)


@app.command("new")
def new(
    file: Annotated[Path, typer.Argument(help="File to write; never overwritten.")], as_json: JsonOption = False
) -> None:
    """Make a key file, readable by you only, and print its address."""
    address = address_of(create_key(file))
    if as_json:
        print_json({"file": str(file), "address": address})
    else:
        STDOUT.print(f"{address}\nkey in {file} (mode 0600): whoever reads it can spend what the address holds")


@app.command("show")
def show(file: Annotated[Path, typer.Argument(help="Key file.")], as_json: JsonOption = False) -> None:
    """Print the address of a key file."""
    address = address_of(load_key(file))
    if as_json:
        print_json({"file": str(file), "address": address})
    else:
        STDOUT.print(address)
