"""What commands print: tables for people, one JSON document with ``--json``; and how amounts are written."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum, IntEnum
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from contracts.bindings.amounts import WEI_PER_TOKEN
from contracts.bindings.foreign_text import show_lines

PIPE_WIDTH = 160
"""Columns where there is no terminal to ask: tables stay whole in a file."""

_PLAIN: dict[str, Any] = {"highlight": False, "markup": False, "emoji": False, "soft_wrap": True}
"""Of both: strangers' texts are printed too, and what looks like mark-up in one is a part of it."""

STDOUT = Console(width=None if sys.stdout.isatty() else PIPE_WIDTH, **_PLAIN)
"""Results."""
STDERR = Console(stderr=True, width=None if sys.stderr.isatty() else PIPE_WIDTH, **_PLAIN)
"""Everything that is no result: errors, progress."""


def parse_amount(text: str) -> int:
    """Read tokens written as a decimal number into wei, exactly: '1.5' -> 1_500_000_000_000_000_000.

    Raises ValueError for anything else.
    """
    whole, _, fraction = text.strip().replace("_", "").partition(".")
    if not (whole or fraction) or not (whole + fraction).isdigit() or len(fraction) > 18:
        raise ValueError(f"{text!r} is no amount; next: write tokens such as 25 or 0.5, with at most 18 decimals")
    return int(whole or "0") * WEI_PER_TOKEN + int((fraction + "0" * 18)[:18])


def format_loss(micro: int) -> str:
    """Write micronats as nats."""
    return f"{micro / 1_000_000:.4f}"


def format_bytes(count: float) -> str:
    """Write a count of bytes: 1,234,567 -> '1.23 MB'."""
    for unit in ("B", "kB", "MB", "GB", "TB", "PB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.2f} {unit}"
        count /= 1000
    return f"{count:.2f} EB"


def format_hash(value: bytes, *, is_short: bool = True) -> str:
    """Write a hash in hex; the short form has 12 digits."""
    if not any(value):
        return "-"
    return "0x" + (value.hex()[:12] + "…" if is_short else value.hex())


def format_name(value: IntEnum) -> str:
    """Write an enumeration's name for people: ``MISSING_PAYLOAD`` -> 'missing payload'."""
    return value.name.lower().replace("_", " ")


def print_json(value: Any) -> None:
    """Print one JSON document: bytes as 0x hex, enumerations by name, big integers as numbers."""
    print(json.dumps(_plain(value), indent=2), flush=True)


def print_pairs(title: str, pairs: Sequence[tuple[str, str]]) -> None:
    """Print a titled list of names and values."""
    table = Table(title=show_lines(title), title_justify="left", show_header=False, box=None, pad_edge=False)
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    for name, value in pairs:
        table.add_row(name, show_lines(value))
    _print_stripped(table)


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table."""
    _print_stripped(create_table(title, columns, rows))


def create_progress() -> Progress:
    """Return a bar for stderr, gone when it is done; nothing where no terminal shows it, not an empty line either."""
    return Progress(console=STDERR, transient=True, disable=not STDERR.is_interactive)


def create_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Return a table for printing or for a live display."""
    table = Table(title=show_lines(title), title_justify="left")
    for column in columns:
        table.add_column(column)
    for row in rows:
        table.add_row(*map(show_lines, row))
    return table


def _print_stripped(table: Table) -> None:
    """Print a table; in a file or pipe without the blanks that fill its lines up."""
    if STDOUT.is_terminal:
        STDOUT.print(table)
        return
    with STDOUT.capture() as captured:
        STDOUT.print(table)
    STDOUT.file.write("".join(line.rstrip() + "\n" for line in captured.get().splitlines()))


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Enum):
        return value.name if isinstance(value, IntEnum) else value.value
    if isinstance(value, bytes):
        return "0x" + value.hex()
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
