"""Options that several commands share, and how text on the command line becomes values."""

from __future__ import annotations

import logging
import re
import secrets
import sys
from pathlib import Path
from typing import Annotated

import typer

from chain.home import ADDRESS_BYTES
from contracts.bindings.foreign_text import ForeignTextFormatter
from contracts.bindings.option_needs import check_needs

DEFAULT_HOME = Path("chain-home")
FIRST_PORT = 26656
"""CometBFT's customary p2p port; RPC is one above."""
MAX_CHAIN_ID_BYTES = 50
"""CometBFT's own limit (types.MaxChainIDLen)."""

Home = Annotated[Path, typer.Option(help="The node's directory.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
TrustHash = Annotated[str, typer.Option(help="With --trust-height: its block hash, 64 hex digits.")]


def parse_account(text: str) -> bytes:
    """Read an account's address."""
    try:
        account = bytes.fromhex(text.removeprefix("0x"))
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is no hex address") from error
    if len(account) != ADDRESS_BYTES:
        raise typer.BadParameter(f"{text!r} has {len(account)} bytes, expected {ADDRESS_BYTES}")
    return account


def check_trust(trust_height: int, trust_hash: str) -> None:
    """Refuse half a trusted block: a height without its hash, or a hash without its height."""
    check_needs("--trust-height", trust_height, "--trust-hash", trust_hash)
    check_needs("--trust-hash", trust_hash, "--trust-height", trust_height)
    if trust_height < 0:
        raise typer.BadParameter(f"--trust-height is {trust_height}, expected at least 1")
    if trust_hash and not re.fullmatch("[0-9a-fA-F]{64}", trust_hash):
        raise typer.BadParameter(f"--trust-hash is {trust_hash[:80]!r}, expected 64 hex digits")


def parse_address(text: str) -> tuple[str, int]:
    """Read host:port."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit():
        raise typer.BadParameter(f"{text!r} is no host:port")
    return host, int(port)


def choose_chain_id(wanted: str) -> str:
    """Return the CometBFT chain id that was asked for, or a new one; raises BadParameter for what CometBFT refuses."""
    if wanted and re.fullmatch(f"[!-~]{{1,{MAX_CHAIN_ID_BYTES}}}", wanted) is None:
        raise typer.BadParameter(
            f"--chain-id is {wanted[:80]!r} ({len(wanted)} characters), expected 1 to {MAX_CHAIN_ID_BYTES} of ASCII"
            " without spaces"
        )
    return wanted or f"archipelago-{secrets.token_hex(4)}"


def configure_logging() -> None:
    """Log to stderr, which `chain-node start` collects."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(ForeignTextFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
