"""Calldata, return data, logs and custom errors from the declarations (Solidity ABI specification).

``encoder`` writes words, ``decoder`` reads the usual ones and eth_abi all others; this module knows the declarations.
Addresses are 20 bytes on our side and structs are tuples in field order.  Invariant: what does not decode strictly
raises ``AbiDecodingError`` and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from eth_abi.abi import decode as decode_abi
from eth_abi.abi import encode as encode_abi
from eth_abi.exceptions import DecodingError
from eth_hash.auto import keccak

from chain.core.abi.declare import Contract, Error, Event, Field, Function, Struct
from chain.core.abi.decoder import Read, make_reader
from chain.core.abi.encoder import Encode, make_tuple_encoder
from chain.core.records import Log
from chain.core.types import Address

SELECTOR_BYTES = 4
"""Solidity ABI: the first four bytes of the signature's keccak256."""


class AbiDecodingError(Exception):
    """Bytes that do not decode as the declared types."""


def canonical_type(field: Field) -> str:
    """Return the type as it stands in a signature, e.g. ``(uint32,bool)[]``."""
    kind = field.kind
    word = f"({','.join(canonical_type(inner) for inner in kind.fields)})" if isinstance(kind, Struct) else kind
    return word + "[]" if field.is_array else word


def signature(name: str, fields: Sequence[Field]) -> str:
    """Return e.g. ``ready(uint64,bytes32)``."""
    return f"{name}({','.join(canonical_type(field) for field in fields)})"


def selector(declared: Function | Error) -> bytes:
    """Return the four bytes that name a function or a custom error."""
    fields = declared.inputs if isinstance(declared, Function) else declared.fields
    return bytes(keccak(signature(declared.name, fields).encode())[:SELECTOR_BYTES])


def topic(event: Event) -> bytes:
    """Return the 32-byte signature hash of an event."""
    return bytes(keccak(signature(event.name, event.fields).encode()))


def encode_values(fields: Sequence[Field], values: Sequence[object]) -> bytes:
    """Encode values as a tuple of the declared types."""
    return bytes(encode_abi([canonical_type(field) for field in fields], list(values)))


def decode_values(fields: Sequence[Field], data: bytes) -> tuple[Any, ...]:
    """Decode strictly: padding must be zero, text must be UTF-8. Raises AbiDecodingError."""
    return _decode([canonical_type(field) for field in fields], _address_paths(fields), data)


def encode_call(function: Function, values: Sequence[object]) -> bytes:
    """Return calldata."""
    return selector(function) + encode_values(function.inputs, values)


@dataclass(frozen=True, slots=True)
class _Layout:
    """A declaration with everything derived from it that costs hashing or text."""

    head: bytes
    types: tuple[str, ...]
    addresses: tuple[bool, ...]
    encode: Encode
    encode_indexed: tuple[Encode, ...] = ()
    is_indexed: tuple[bool, ...] = ()


@dataclass(frozen=True, slots=True)
class FunctionCodec:
    """One function's calldata and return data."""

    function: Function
    _inputs: _Layout
    _outputs: _Layout
    _read_inputs: Read

    def decode_inputs(self, data: bytes) -> tuple[Any, ...]:
        """Decode what follows the selector. Raises AbiDecodingError."""
        values = self._read_inputs(data)
        return values if values is not None else _decode(list(self._inputs.types), self._inputs.addresses, data)

    def encode_inputs(self, values: Sequence[object]) -> bytes:
        """Return calldata with its selector."""
        return self._inputs.head + bytes(encode_abi(self._inputs.types, list(values)))

    def encode_outputs(self, values: Sequence[object]) -> bytes:
        """Return return data."""
        return self._outputs.encode(values)

    def decode_outputs(self, data: bytes) -> tuple[Any, ...]:
        """Decode return data. Raises AbiDecodingError."""
        return _decode(list(self._outputs.types), self._outputs.addresses, data)


class ContractCodec:
    """A contract's declarations by selector, topic and name."""

    __slots__ = ("_errors", "_events", "by_name", "by_selector", "contract")

    def __init__(self, contract: Contract) -> None:
        """Derive selectors, topics and type words once."""
        self.contract = contract
        self.by_name: dict[str, FunctionCodec] = {}
        self.by_selector: dict[bytes, FunctionCodec] = {}
        for function in contract.functions:
            codec = FunctionCodec(
                function,
                _layout(selector(function), function.inputs),
                _layout(b"", function.outputs),
                make_reader(function.inputs),
            )
            self.by_name[function.name] = codec
            self.by_selector[selector(function)] = codec
        self._errors = {error.name: (_layout(selector(error), error.fields), error) for error in contract.errors}
        self._events = {event.name: (_event_layout(event), event) for event in contract.events}

    def encode_error(self, name: str, values: Sequence[object]) -> bytes:
        """Return revert data of a declared error."""
        layout, _ = self._errors[name]
        return layout.head + layout.encode(values)

    def decode_error(self, data: bytes) -> tuple[str, tuple[Any, ...]] | None:
        """Return name and values of a custom error, None for any other revert data."""
        for name, (layout, _) in self._errors.items():
            if data[:SELECTOR_BYTES] == layout.head:
                return name, _decode(list(layout.types), layout.addresses, data[SELECTOR_BYTES:])
        return None

    def encode_log(self, name: str, values: Sequence[object]) -> Log:
        """Return the log of a declared event; values in declaration order."""
        layout, _ = self._events[name]
        indexed = [value for value, is_indexed in zip(values, layout.is_indexed, strict=True) if is_indexed]
        plain = [value for value, is_indexed in zip(values, layout.is_indexed, strict=True) if not is_indexed]
        words = [encode((value,)) for encode, value in zip(layout.encode_indexed, indexed, strict=True)]
        return Log(
            address=Address(self.contract.address),
            topics=(layout.head, *words),
            data=layout.encode(plain),
        )

    def decode_log(self, log: Log) -> tuple[str, dict[str, Any]] | None:
        """Return name and values by field name, None for a log of another kind."""
        for name, (layout, event) in self._events.items():
            if log.topics[0] != layout.head:
                continue
            indexed = [field for field in event.fields if field.is_indexed]
            plain = [field for field in event.fields if not field.is_indexed]
            found = dict(zip([field.name for field in plain], decode_values(plain, log.data), strict=True))
            for field, word in zip(indexed, log.topics[1:], strict=True):
                found[field.name] = decode_values([field], word)[0]
            return name, found
        return None


def _layout(head: bytes, fields: Sequence[Field]) -> _Layout:
    return _Layout(
        head,
        tuple(canonical_type(field) for field in fields),
        _address_paths(fields),
        make_tuple_encoder(fields).encode,
    )


def _event_layout(event: Event) -> _Layout:
    plain = [field for field in event.fields if not field.is_indexed]
    return _Layout(
        topic(event),
        tuple(canonical_type(field) for field in plain),
        _address_paths(plain),
        make_tuple_encoder(plain).encode,
        tuple(make_tuple_encoder([field]).encode for field in event.fields if field.is_indexed),
        tuple(field.is_indexed for field in event.fields),
    )


def _address_paths(fields: Sequence[Field]) -> tuple[bool, ...]:
    return tuple("address" in canonical_type(field) for field in fields)


def _decode(types: list[str], has_address: Sequence[bool], data: bytes) -> tuple[Any, ...]:
    try:
        values = decode_abi(types, data)
    except (DecodingError, UnicodeDecodeError, OverflowError, ValueError, MemoryError) as error:
        raise AbiDecodingError(f"{type(error).__name__}: {error}"[:200]) from error
    return tuple(
        _bytes_addresses(value, kind) if with_address else value
        for value, kind, with_address in zip(values, types, has_address, strict=True)
    )


def _bytes_addresses(value: Any, kind: str) -> Any:
    if kind.endswith("[]"):
        return tuple(_bytes_addresses(item, kind.removesuffix("[]")) for item in value)
    if kind.startswith("("):
        return tuple(_bytes_addresses(item, inner) for item, inner in zip(value, _split(kind[1:-1]), strict=True))
    return bytes.fromhex(value.removeprefix("0x")) if kind == "address" else value


def _split(types: str) -> list[str]:
    parts, depth, start = [], 0, 0
    for position, letter in enumerate(types):
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth == 0:
            parts.append(types[start:position])
            start = position + 1
    return [*parts, types[start:]]
