"""Canonical bytes of the contracts' records: msgpack lists of their fields, in field order.

msgpack-python always takes the shortest form, so equal records have equal bytes.  Integers of more than
64 bits (amounts, bitmaps) are extension 1, minimal big-endian.  A nested record is a nested list.
Invariant: ``decode(encode(record)) == record``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from enum import IntEnum
from functools import lru_cache
from operator import attrgetter
from typing import Any, Generic, TypeVar, get_type_hints

import msgpack

_BIG_INTEGER = 1
_NESTED_MEMO = 64
"""Nested records (a run's parameters) are frozen and repeat in every round: decode the latest ones once."""

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

    __slots__ = ("_converters", "_get_values", "_names", "_nested_codecs", "_record", "_setters")

    def __init__(self, record: type[Record]) -> None:
        """Look at the fields once."""
        hints = get_type_hints(record)
        assert is_dataclass(record)
        self._record = record
        self._names = tuple(item.name for item in fields(record))
        self._nested_codecs: tuple[tuple[int, RecordCodec[Any]], ...] = tuple(
            (index, RecordCodec(hints[name])) for index, name in enumerate(self._names) if is_dataclass(hints[name])
        )
        self._converters: tuple[tuple[int, Callable[[Any], Any]], ...] = tuple(
            (index, lru_cache(_NESTED_MEMO)(codec._from_list)) for index, codec in self._nested_codecs
        ) + tuple(
            (index, hints[name])
            for index, name in enumerate(self._names)
            if isinstance(hints[name], type) and issubclass(hints[name], IntEnum)
        )
        assert "__slots__" in vars(record), "a record has slots, and nothing happens when it is made"
        assert not hasattr(record, "__post_init__"), "a record has slots, and nothing happens when it is made"
        self._setters: tuple[Callable[[Any, Any], None], ...] = tuple(
            getattr(record, name).__set__ for name in self._names
        )
        self._get_values = attrgetter(*self._names)

    def encode(self, record: Record) -> bytes:
        """Return canonical bytes."""
        return pack(self._to_list(record))

    def decode(self, data: bytes) -> Record:
        """Return the record."""
        return self._from_list(unpack(data))

    def _to_list(self, record: Record) -> list[Any]:
        values = list(self._get_values(record))
        for index, codec in self._nested_codecs:
            values[index] = codec._to_list(values[index])
        return values

    def _from_list(self, values: tuple[Any, ...]) -> Record:
        record = object.__new__(self._record)  # a third of the time of calling the class with names
        for set_field, value in zip(self._setters, values, strict=True):
            set_field(record, value)
        for index, convert in self._converters:
            self._setters[index](record, convert(values[index]))
        return record
