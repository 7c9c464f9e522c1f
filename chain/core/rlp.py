"""Recursive length prefix, strict (yellow paper, appendix B).

Only the shortest encoding of an item is accepted, so that one value has one byte string and a transaction one
hash.  Worked example: ``encode([b"cat", b""])`` is ``c5 83636174 80``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

Item: TypeAlias = "bytes | list[Item]"
"""A byte string, or a list of items."""

MAX_DEPTH = 8
"""Lists within lists that are decoded; a transaction has 3, and recursion must be bounded."""

_SHORT = 55
"""Longest payload whose length stands in the first byte."""
BYTES = tuple(bytes((value,)) for value in range(256))
"""Each byte."""


class InvalidRlp(ValueError):
    """Bytes that aren't the canonical encoding of an item."""


def encode(item: bytes | Sequence[object]) -> bytes:
    """Encode a byte string, or a sequence of items."""
    if isinstance(item, bytes):
        if len(item) == 1 and item[0] < 0x80:
            return item
        return encode_header(0x80, len(item)) + item
    parts: list[bytes] = []
    for part in item:
        if type(part) is not bytes:
            parts.append(encode(part))  # type: ignore[arg-type]
        elif len(part) == 1 and part[0] < 0x80:
            parts.append(part)
        else:
            parts.append(encode_header(0x80, len(part)))
            parts.append(part)
    payload = b"".join(parts)
    return encode_header(0xC0, len(payload)) + payload


def encode_header(base: int, length: int) -> bytes:
    """Encode the length of a string (base 0x80) or a list (base 0xC0)."""
    if length <= _SHORT:
        return BYTES[base + length]
    size = encode_integer(length)
    return bytes((base + _SHORT + len(size),)) + size


def encode_integer(value: int) -> bytes:
    """Return big-endian bytes without leading zeros; zero is empty."""
    return value.to_bytes((value.bit_length() + 7) >> 3, "big")


def decode(data: bytes) -> Item:
    """Decode one item that fills ``data``; raises InvalidRlp."""
    item, end = _decode_at(data, 0, len(data), 0)
    if end != len(data):
        raise InvalidRlp(f"{len(data) - end} bytes after the item")
    return item


def decode_list(data: bytes, start: int) -> tuple[list[Item], list[int]]:
    """Decode the list that begins at ``start`` and ends with ``data``; raises InvalidRlp.

    Also returns where each item begins, and after the last one where the list ends, so that a caller can cut
    the encoding of neighbouring items out of ``data``.
    """
    is_list, position, end = _read_header(data, start, len(data))
    if not is_list:
        raise InvalidRlp("a list was expected, got a byte string")
    if end != len(data):
        raise InvalidRlp(f"{len(data) - end} bytes after the list")
    items: list[Item] = []
    starts: list[int] = []
    while position < end:
        starts.append(position)
        first = data[position]
        if 0x81 < first <= 0x80 + _SHORT and position + first - 0x80 < end:  # the common case, without a call
            payload = position + 1
            position = payload + first - 0x80
            items.append(data[payload:position])
        else:
            item, position = _decode_at(data, position, end, 1)
            items.append(item)
    starts.append(end)
    return items, starts


def _read_header(data: bytes, start: int, limit: int) -> tuple[bool, int, int]:
    """Return (is_list, payload start, payload end) of the item at ``start``, inside ``limit``."""
    if start >= limit:
        raise InvalidRlp("item ends before its first byte")
    first = data[start]
    if first < 0x80:
        return False, start, start + 1
    is_list = first >= 0xC0
    length = first - (0xC0 if is_list else 0x80)
    payload = start + 1
    if length > _SHORT:
        size = length - _SHORT
        payload += size
        if payload > limit:
            raise InvalidRlp("item ends within its length")
        if data[start + 1] == 0:
            raise InvalidRlp("length with a leading zero")
        length = int.from_bytes(data[start + 1 : payload], "big")
        if length <= _SHORT:
            raise InvalidRlp(f"long form for a length of {length}")
    end = payload + length
    if end > limit:
        raise InvalidRlp(f"item of {length} bytes, {limit - payload} are left")
    if not is_list and length == 1 and data[payload] < 0x80:
        raise InvalidRlp("a byte below 0x80 with a prefix")
    return is_list, payload, end


def _decode_at(data: bytes, start: int, limit: int, depth: int) -> tuple[Item, int]:
    is_list, payload, end = _read_header(data, start, limit)
    if not is_list:
        return data[payload:end], end
    if depth >= MAX_DEPTH:
        raise InvalidRlp(f"lists nested deeper than {MAX_DEPTH}")
    items: list[Item] = []
    while payload < end:
        item, payload = _decode_at(data, payload, end, depth + 1)
        items.append(item)
    return items, end
