"""Arguments out of ABI words in their usual layout, as functions made once from the declared types.

eth_abi looks at types and words anew in each call: 50 microseconds for the arguments of ``commit``, 4 here.  It stays
the judge: what isn't laid out as ``encoder`` lays it out, to the byte, is left to it, with all that can be wrong, and
so are structs and arrays.  Invariant: what is read here, eth_abi reads alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from chain.core.abi.declare import Field, Struct

_WORD_BYTES = 32
_ADDRESS_BYTES = 20
_NO_BYTES = bytes(_WORD_BYTES)

Read = Callable[[bytes], "tuple[Any, ...] | None"]
"""Encoded values -> values; None where eth_abi must look."""

_ReadWord = Callable[[bytes], Any]
"""A word -> its value, None where it has none."""


def make_reader(fields: Sequence[Field]) -> Read:
    """Return what reads a tuple of the declared types."""
    words = [_make_word_reader(field) for field in fields]
    if not all(word is not None or _is_behind(field) for word, field in zip(words, fields, strict=True)):
        return _read_nothing
    are_text = [field.kind == "string" for field in fields]
    head_bytes = _WORD_BYTES * len(fields)

    def read(data: bytes) -> tuple[Any, ...] | None:
        tail = head_bytes
        values: list[Any] = []
        if len(data) < head_bytes:
            return None
        for start, read_word, is_text in zip(range(0, head_bytes, _WORD_BYTES), words, are_text, strict=True):
            word = data[start : start + _WORD_BYTES]
            if read_word is not None:
                value = read_word(word)
            else:
                value = _read_bytes(data, tail) if int.from_bytes(word, "big") == tail else None
                if value is not None:
                    tail += _WORD_BYTES + len(value) + -len(value) % _WORD_BYTES
                    value = _read_text(value) if is_text else value
            if value is None:
                return None
            values.append(value)
        return tuple(values) if tail == len(data) else None

    return read


def _is_behind(field: Field) -> bool:
    """Tell a value that stands behind the words, which say where."""
    return field.kind in ("bytes", "string") and not field.is_array


def _make_word_reader(field: Field) -> _ReadWord | None:
    """Return what reads a value of one word; None for any other type."""
    kind = field.kind
    if field.is_array or isinstance(kind, Struct):
        return None
    if kind.startswith("uint"):
        return _make_uint_reader(int(kind.removeprefix("uint")))
    return {"bytes32": _read_word, "address": _read_address, "bool": _read_bool}.get(kind)


def _make_uint_reader(num_bits: int) -> _ReadWord:
    def read_uint(word: bytes) -> int | None:
        number = int.from_bytes(word, "big")
        return None if number >> num_bits else number

    return read_uint


def _read_word(word: bytes) -> bytes:
    return word


def _read_address(word: bytes) -> bytes | None:
    return word[-_ADDRESS_BYTES:] if word.startswith(_NO_BYTES[_ADDRESS_BYTES:]) else None


def _read_bool(word: bytes) -> bool | None:
    number = int.from_bytes(word, "big")
    return None if number > 1 else number == 1


def _read_bytes(data: bytes, start: int) -> bytes | None:
    """Return the byte string whose length stands at ``start``, with zeros behind it up to a whole word."""
    payload = start + _WORD_BYTES
    length = int.from_bytes(data[start:payload], "big")
    stop = payload + length
    end = stop + -length % _WORD_BYTES
    if end > len(data) or data[stop:end] != _NO_BYTES[: end - stop]:
        return None
    return data[payload:stop]


def _read_text(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def _read_nothing(data: bytes) -> None:
    return None
