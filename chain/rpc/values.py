"""Quantities, bytes and block tags between JSON and Python (EIP-1474).

A quantity has no leading zero (0 is ``0x0``); data has two digits a byte.  Strict on the way in: a value that
is neither is InvalidParams with the parameter's name.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Any

from chain.core.types import Address
from chain.rpc.faults import InvalidParams

NEWEST_TAGS = frozenset({"latest", "safe", "finalized", "pending"})
"""All name the newest block: a block is final when it is there."""

_MAX_QUANTITY = 2**256 - 1
_MISSING = object()
_MAX_SLIP_CHARACTERS = 80
"""Twice the longest name there is."""


def find_nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that ``name`` was probably meant to be; none for one that is too long to be a slip."""
    if len(name) > _MAX_SLIP_CHARACTERS:
        return None  # to compare megabytes takes a second
    return next(iter(difflib.get_close_matches(name, known, 1)), None)


def quantity(value: int) -> str:
    """Write a number."""
    return hex(value)


def hex_data(value: bytes) -> str:
    """Write bytes."""
    return "0x" + value.hex()


class Params:
    """The positional parameters of one call, read with their names."""

    __slots__ = ("_items",)

    def __init__(self, items: Sequence[Any]) -> None:
        """Take the list as it came."""
        self._items = items

    def __len__(self) -> int:
        """Return how many were given."""
        return len(self._items)

    def at_most(self, limit: int) -> None:
        """Refuse more parameters than the method has."""
        if len(self._items) > limit:
            raise InvalidParams(f"too many arguments, want at most {limit}, got {len(self._items)}")

    def raw(self, index: int, name: str, default: Any = _MISSING) -> Any:
        """Return a parameter as it came; null counts as missing where there is a default."""
        if index < len(self._items) and (self._items[index] is not None or default is _MISSING):
            return self._items[index]
        if default is _MISSING:
            raise InvalidParams(f"missing value for required argument {index} ({name})")
        return default

    def address(self, index: int, name: str) -> Address:
        """Read 20 bytes."""
        return Address(parse_data(self.raw(index, name), name, num_bytes=20))

    def hash(self, index: int, name: str) -> bytes:
        """Read 32 bytes."""
        return parse_data(self.raw(index, name), name, num_bytes=32)

    def number(self, index: int, name: str, limit: int = _MAX_QUANTITY) -> int:
        """Read a quantity."""
        return parse_quantity(self.raw(index, name), name, limit)

    def flag(self, index: int, name: str) -> bool:
        """Read a boolean, False where it is missing."""
        value = self.raw(index, name, False)
        if not isinstance(value, bool):
            raise InvalidParams(f"{name} is {value!r}, expected true or false")
        return value

    def height(self, index: int, newest: int, name: str = "block", default: Any = "latest") -> int:
        """Read a block tag or number; it may be above the newest."""
        return parse_height(self.raw(index, name, default), newest, name)


def is_newest_tag(value: Any) -> bool:
    """Say whether a block parameter names the newest block."""
    return isinstance(value, str) and value in NEWEST_TAGS


def parse_height(value: Any, newest: int, name: str = "block") -> int:
    """Turn a tag or a number into a height."""
    if is_newest_tag(value):
        return newest
    if value == "earliest":
        return 0
    return parse_quantity(value, name, 2**63 - 1)


def parse_quantity(value: Any, name: str, limit: int = _MAX_QUANTITY) -> int:
    """Read a quantity; leading zeros are let through, as clients send them."""
    if isinstance(value, str) and value.startswith("0x") and len(value) > 2:
        try:
            number = int(value[2:], 16)
        except ValueError as e:
            raise InvalidParams(f"{name} is {value[:80]!r}, expected a quantity such as 0x1f") from e
        if 0 <= number <= limit and "_" not in value:
            return number
        raise InvalidParams(f"{name} is {value[:80]}, expected 0x0 .. {limit:#x}")
    raise InvalidParams(f"{name} is {str(value)[:80]!r}, expected a quantity such as 0x1f")


def parse_data(value: Any, name: str, num_bytes: int | None = None) -> bytes:
    """Read bytes, of an exact length where one is given."""
    if not isinstance(value, str) or not value.startswith("0x"):
        raise InvalidParams(f"{name} is {str(value)[:80]!r}, expected hex digits after 0x")
    try:
        data = bytes.fromhex(value[2:])
    except ValueError as e:
        raise InvalidParams(f"{name} is {value[:80]!r}, expected two hex digits a byte after 0x") from e
    if num_bytes is not None and len(data) != num_bytes:
        raise InvalidParams(f"{name} has {len(data)} bytes, expected {num_bytes}")
    return data
