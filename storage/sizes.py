"""Sizes as people write them: 10GB, 512MiB, 4096."""

from __future__ import annotations

import re

UNITS: dict[str, int] = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}
"""Decimal units as on the label of a disk, binary ones with an i."""

_SIZE = re.compile(r"(\d{1,15})(?:\.(\d{1,6}))?\s*([A-Za-z]*)", re.ASCII)


def parse_size(text: str) -> int:
    """Return bytes.

    >>> parse_size("10GB"), parse_size("1.5 KiB"), parse_size("7")
    (10000000000, 1536, 7)

    Raises: ValueError naming the units.
    """
    match = _SIZE.fullmatch(text.strip())
    unit = UNITS.get(match.group(3).upper()) if match else None
    if match is None or unit is None:
        raise ValueError(
            f"{text!r} is not a size: expected a number and one of B, KB, MB, GB, TB, KiB, MiB, GiB, TiB; "
            "next: write it as 10GB"
        )
    whole, fraction = match.group(1), match.group(2) or ""
    scale: int = 10 ** len(fraction)
    return int(whole + fraction) * unit // scale


def format_size(num_bytes: int) -> str:
    """Return bytes as people read them, at most one decimal.

    >>> format_size(999), format_size(2_000), format_size(1_500_000)
    ('999 B', '2.0 kB', '1.5 MB')
    """
    for unit in ("TB", "GB", "MB", "kB"):
        if num_bytes >= UNITS[unit.upper()]:
            return f"{num_bytes / UNITS[unit.upper()]:.1f} {unit}"
    return f"{num_bytes} B"
