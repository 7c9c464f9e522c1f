"""``trainer keys``: key files of owners and workers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from contracts.bindings.keys import address_of, create_key, encrypt_file, load_address
from contracts.bindings.unlocking import ask_new_password, ask_password
from training.commands.options import JsonOption
from training.commands.output import STDOUT, print_json

app = typer.Typer(help="Make and show key files.", no_args_is_help=True)


@app.command("new")
def new(
    file: Annotated[Path, typer.Argument(help="File to write; never overwritten.")],
    encrypted: Annotated[bool, typer.Option("--encrypted", help="Ask for a password and write a keystore.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Make a key file, readable by you only, and print its address."""
    address = address_of(create_key(file, ask_new_password(file) if encrypted else None))
    if as_json:
        print_json({"file": str(file), "address": address, "is_encrypted": encrypted})
        return
    risk = (
        "without its password nobody can use it" if encrypted else "whoever reads it can spend what the address holds"
    )
    STDOUT.print(f"{address}\nkey in {file} (mode 0600): {risk}")


@app.command("encrypt")
def encrypt(file: Annotated[Path, typer.Argument(help="Key file.")], as_json: JsonOption = False) -> None:
    """Encrypt a key file with a password: Ethereum's keystore, version 3."""
    address = encrypt_file(file, ask_new_password(file))
    if as_json:
        print_json({"file": str(file), "address": address, "is_encrypted": True})
    else:
        STDOUT.print(f"{address}\nkey in {file} is encrypted now; copies of the old file are not")


@app.command("show")
def show(file: Annotated[Path, typer.Argument(help="Key file.")], as_json: JsonOption = False) -> None:
    """Print the address of a key file."""
    address = load_address(file, ask_password)
    if as_json:
        print_json({"file": str(file), "address": address})
    else:
        STDOUT.print(address)
