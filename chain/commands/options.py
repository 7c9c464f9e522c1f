"""Options that several commands share, and how text on the command line becomes values."""

from __future__ import annotations

import logging
import secrets
import sys
from pathlib import Path
from typing import Annotated

import typer

from chain.home import ADDRESS_BYTES

DEFAULT_HOME = Path("chain-home")
FIRST_PORT = 26656
"""CometBFT's customary p2p port; RPC is one above."""

Home = Annotated[Path, typer.Option(help="The node's directory.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def parse_account(text: str) -> bytes:
    """Read an account's address."""
    try:
        account = bytes.fromhex(text.removeprefix("0x"))
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is no hex address") from error
    if len(account) != ADDRESS_BYTES:
        raise typer.BadParameter(f"{text!r} has {len(account)} bytes, expected {ADDRESS_BYTES}")
    return account


def parse_address(text: str) -> tuple[str, int]:
    """Read host:port."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit():
        raise typer.BadParameter(f"{text!r} is no host:port")
    return host, int(port)


def make_chain_id() -> str:
    """Return a new CometBFT chain id."""
    return f"archipelago-{secrets.token_hex(4)}"


def configure_logging() -> None:
    """Log to stderr, which `chain-node start` collects."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
