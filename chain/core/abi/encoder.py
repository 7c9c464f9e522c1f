"""Values to ABI words, as functions made once from the declared types (Solidity ABI specification, *Formal
specification of the encoding*).

eth_abi looks at types and values anew in each call: 130 microseconds for a Round of 30 fields, 9 here.  It stays the
reader of calldata, which must be strict, and the tests' oracle.  A static value is its words; a dynamic one (bytes,
string, an array, a struct with one of them) lies behind the static ones, which say where.  Worked example: (uint8 3,
bytes "ab") is word 3, word 64, word 2, then 6162 and 30 zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from chain.core.abi.declare import Field, Struct

WORD_BYTES = 32

Encode = Callable[[Any], bytes]


@dataclass(frozen=True, slots=True)
class Encoder:
    """How one type is written."""

    encode: Encode
    """The value's bytes."""
    head_words: int
    """Words of a static value; 0: dynamic, one word that says where."""


class AbiEncodingError(Exception):
    """A value outside its declared type: our own code is wrong."""

    def __init__(self, kind: str, value: object) -> None:
        """Keep both."""
        super().__init__(f"{str(value)[:80]!r} is no {kind}")
        self.kind = kind
        self.value = value


def make_tuple_encoder(fields: Sequence[Field]) -> Encoder:
    """Return the encoder of a struct, of arguments, or of outputs."""
    encoders = tuple(make_encoder(field) for field in fields)
    functions = tuple(encoder.encode for encoder in encoders)
    if all(encoder.head_words for encoder in encoders):

        def encode_static(values: Sequence[Any]) -> bytes:
            return b"".join([encode(value) for encode, value in zip(functions, values, strict=True)])

        return Encoder(encode_static, sum(encoder.head_words for encoder in encoders))

    head_bytes = WORD_BYTES * sum(encoder.head_words or 1 for encoder in encoders)
    is_dynamic = tuple(encoder.head_words == 0 for encoder in encoders)

    def encode_dynamic(values: Sequence[Any]) -> bytes:
        heads: list[bytes] = []
        tails: list[bytes] = []
        offset = head_bytes
        for encode, is_behind, value in zip(functions, is_dynamic, values, strict=True):
            encoded = encode(value)
            if is_behind:
                heads.append(offset.to_bytes(WORD_BYTES, "big"))
                tails.append(encoded)
                offset += len(encoded)
            else:
                heads.append(encoded)
        return b"".join(heads + tails)

    return Encoder(encode_dynamic, 0)


def make_encoder(field: Field) -> Encoder:
    """Return the encoder of one field."""
    item = make_tuple_encoder(field.kind.fields) if isinstance(field.kind, Struct) else _make_elementary(field.kind)
    return Encoder(_make_array(item), 0) if field.is_array else item


def _make_array(item: Encoder) -> Encode:
    encode = item.encode
    is_static = item.head_words > 0

    def encode_array(values: Sequence[Any]) -> bytes:
        parts = [encode(value) for value in values]
        length = len(parts).to_bytes(WORD_BYTES, "big")
        if is_static:
            return length + b"".join(parts)
        offsets: list[bytes] = []
        offset = WORD_BYTES * len(parts)
        for part in parts:
            offsets.append(offset.to_bytes(WORD_BYTES, "big"))
            offset += len(part)
        return length + b"".join(offsets + parts)

    return encode_array


def _make_elementary(kind: str) -> Encoder:
    if kind.startswith("uint"):
        return Encoder(_make_uint(kind, int(kind[4:])), 1)
    if kind == "bool":
        return Encoder(_encode_bool, 1)
    if kind == "address":
        return Encoder(_encode_address, 1)
    if kind == "string":
        return Encoder(_encode_text, 0)
    if kind == "bytes":
        return Encoder(_encode_bytes, 0)
    return Encoder(_make_fixed_bytes(kind, int(kind.removeprefix("bytes"))), 1)


def _make_uint(kind: str, num_bits: int) -> Encode:
    def encode(value: int) -> bytes:
        if value >> num_bits:  # also true of negative numbers
            raise AbiEncodingError(kind, value)
        return value.to_bytes(WORD_BYTES, "big")

    return encode


def _make_fixed_bytes(kind: str, num_bytes: int) -> Encode:
    def encode(value: bytes) -> bytes:
        if len(value) > num_bytes:
            raise AbiEncodingError(kind, value)
        return value.ljust(WORD_BYTES, b"\0")

    return encode


def _encode_bool(value: bool) -> bytes:
    return b"\0" * 31 + (b"\1" if value else b"\0")


def _encode_address(value: bytes) -> bytes:
    if len(value) != 20:
        raise AbiEncodingError("address", value)
    return bytes(12) + value


def _encode_bytes(value: bytes) -> bytes:
    size = len(value)
    return size.to_bytes(WORD_BYTES, "big") + value + bytes(-size % WORD_BYTES)


def _encode_text(value: str) -> bytes:
    return _encode_bytes(value.encode())
