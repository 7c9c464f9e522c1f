"""Canonical bytes of the contracts' records: msgpack lists of their fields, in field order.

msgpack-python always takes the shortest form, so equal records have equal bytes.  Integers of more than
64 bits (amounts, bitmaps) are extension 1, minimal big-endian.  A nested record is a nested list.
Invariant: ``decode(encode(record)) == record``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from enum import IntEnum
from typing import Any, Generic, TypeVar, get_type_hints

import msgpack

_BIG_INTEGER = 1

Record = TypeVar("Record")


def _encode_big(value: object) -> msgpack.ExtType:
    assert isinstance(value, int), f"a record holds a {type(value).__name__}"
    return msgpack.ExtType(_BIG_INTEGER, value.to_bytes(-(-value.bit_length() // 8), "big"))


def _decode_extension(code: int, data: bytes) -> int:
    assert code == _BIG_INTEGER
    return int.from_bytes(data, "big")


def pack(value: object) -> bytes:
    """Encode integers, bytes, text, booleans and lists of them."""
    packed: bytes = msgpack.packb(value, default=_encode_big, use_bin_type=True)
    return packed


def unpack(data: bytes) -> Any:
    """Decode what ``pack`` made; lists come back as tuples."""
    return msgpack.unpackb(data, ext_hook=_decode_extension, use_list=False, raw=False, strict_map_key=True)


class RecordCodec(Generic[Record]):
    """Bytes of one dataclass."""

    __slots__ = ("_converters", "_names", "_nested", "_record")

    def __init__(self, record: type[Record]) -> None:
        """Look at the fields once."""
        hints = get_type_hints(record)
        assert is_dataclass(record)
        self._record = record
        self._names = tuple(item.name for item in fields(record))
        self._nested: tuple[tuple[int, RecordCodec[Any]], ...] = tuple(
            (index, RecordCodec(hints[name])) for index, name in enumerate(self._names) if is_dataclass(hints[name])
        )
        self._converters: tuple[tuple[int, Callable[[Any], Any]], ...] = tuple(
            (index, hints[name])
            for index, name in enumerate(self._names)
            if isinstance(hints[name], type) and issubclass(hints[name], IntEnum)
        )

    def encode(self, record: Record) -> bytes:
        """Return canonical bytes."""
        return pack(self._to_list(record))

    def decode(self, data: bytes) -> Record:
        """Return the record."""
        return self._from_list(unpack(data))

    def _to_list(self, record: Record) -> list[Any]:
        values = [getattr(record, name) for name in self._names]
        for index, codec in self._nested:
            values[index] = codec._to_list(values[index])
        return values

    def _from_list(self, values: tuple[Any, ...]) -> Record:
        found = list(values)
        for index, codec in self._nested:
            found[index] = codec._from_list(found[index])
        for index, convert in self._converters:
            found[index] = convert(found[index])
        return self._record(**dict(zip(self._names, found, strict=True)))
