"""Calldata, return values, events and custom errors of the system contracts, to and from typed values.

Everything is read from the generated ABI JSON.  Names are snake_case, addresses checksummed, structs the
dataclasses of ``contracts.bindings.types``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import IntEnum
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any, get_type_hints

from eth_abi.abi import decode, encode
from eth_abi.exceptions import DecodingError, EncodingError
from eth_hash.auto import keccak
from eth_utils.address import to_checksum_address

from contracts.bindings import types
from contracts.bindings.addresses import ADDRESSES
from contracts.bindings.errors import BadAnswer, BindingError, ContractError, describe_error

_ERROR_STRING_SELECTOR = bytes.fromhex("08c379a0")
"""Solidity's ``Error(string)``."""
_PANIC_SELECTOR = bytes.fromhex("4e487b71")
"""Solidity's ``Panic(uint256)``."""
_PYTHON_STRUCT = {"Tier": "TierInfo"}
"""Structs whose dataclass has another name."""
_QUANTITY = re.compile(r"0x[0-9a-fA-F]+")
"""What JSON-RPC writes a number as; ``int`` reads more: other digits than ASCII's, underscores, signs, no 0x."""
_KEYWORDS = frozenset({"from", "import", "in", "is", "pass", "return"})
UNREADABLE = (DecodingError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What comes of reading a node's answer that has another shape than the one that was asked for."""
_SHOWN_CHARACTERS = 80
"""Of an answer that can't be read."""


class BadArguments(BindingError):
    """Arguments that don't fit a function's types."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One decoded event."""

    contract: str
    """Training, Storage or Staking."""
    name: str
    fields: Mapping[str, Any]
    """Values by snake_case name."""
    height: int
    transaction_hash: bytes
    log_index: int
    """Global in its block."""


def encode_call(contract: str, function: str, arguments: Sequence[Any]) -> bytes:
    """Return selector and encoded arguments; a struct may be its dataclass."""
    entry = _functions(contract).get(function)
    if entry is None:
        raise BadArguments(f"{contract} has no function {function}; it has {', '.join(sorted(_functions(contract)))}")
    wanted = [_canonical(parameter) for parameter in entry["inputs"]]
    if len(arguments) != len(wanted):
        raise BadArguments(f"{contract}.{function} takes {len(wanted)} arguments, got {len(arguments)}")
    try:
        return selector_of(entry) + encode(wanted, [_plain(argument) for argument in arguments])
    except EncodingError as e:
        plain = [_plain(argument) for argument in arguments]
        raise BadArguments(f"{contract}.{function}: {_find_misfit(entry['inputs'], plain) or e}") from e


def _find_misfit(parameters: Sequence[dict[str, Any]], arguments: Sequence[Any]) -> str:
    """Say which argument has no place in its type, in words, and what to do; empty where each alone has."""
    for parameter, argument in zip(parameters, arguments, strict=False):
        kind = _canonical(parameter)
        try:
            encode([kind], [argument])
        except EncodingError:
            if parameter["type"] == "tuple":
                inner = _find_misfit(parameter["components"], argument)
                if inner:
                    return inner
            return f"{parameter['name']} is {argument!r}, expected {kind}; next: give a value in that range"
    return ""


def decode_output(contract: str, function: str, data: bytes) -> Any:
    """Return the value, or a tuple where a function returns several."""
    outputs = _functions(contract)[function]["outputs"]
    try:
        values = decode([_canonical(parameter) for parameter in outputs], data)
        typed = tuple(_typed(parameter, value) for parameter, value in zip(outputs, values, strict=True))
    except UNREADABLE as e:
        why = str(e)[:200]
        raise BadAnswer(f"{contract}.{function} returned {len(data)} bytes that don't decode: {why}") from e
    return typed[0] if len(typed) == 1 else typed


def decode_error(data: bytes) -> ContractError | None:
    """Read revert data; None where it is no error we know. Raises BadAnswer where such a one has other values."""
    try:
        return _decode_error(data)
    except UNREADABLE as e:
        raise BadAnswer(f"the node sent {show(data)}, a refusal whose values don't decode: {str(e)[:200]}") from e


def _decode_error(data: bytes) -> ContractError | None:
    selector, body = data[:4], data[4:]
    if selector == _ERROR_STRING_SELECTOR:
        (message,) = decode(["string"], body)
        return ContractError("Error", {"message": message}, message)
    if selector == _PANIC_SELECTOR:
        (code,) = decode(["uint256"], body)
        return ContractError("Panic", {"code": code}, f"Panic: code {code:#x}")
    entry = _errors().get(selector)
    if entry is None:
        return None
    values = decode([_canonical(parameter) for parameter in entry["inputs"]], body)
    named = _named(entry["inputs"], values)
    return ContractError(entry["name"], named, describe_error(entry["name"], named))


def read_bytes(value: Any) -> bytes:
    """Read 0x and hex that a node has sent; raises BadAnswer."""
    try:
        data = bytes.fromhex(value.removeprefix("0x"))
        if value.startswith("0x") and len(value) == 2 + 2 * len(data):  # fromhex passes over white space
            return data
    except UNREADABLE:
        pass
    raise BadAnswer(f"the node sent {show(value)}, expected bytes such as 0x1f00")


def read_quantity(value: Any) -> int:
    """Read a number that a node has sent; raises BadAnswer."""
    if not isinstance(value, str) or not _QUANTITY.fullmatch(value):
        raise BadAnswer(f"the node sent {show(value)}, expected a quantity such as 0x1f")
    number = int(value, 16)
    if number >= 1 << 256:
        raise BadAnswer(f"the node sent {show(value)}, expected a quantity of at most 256 bits")
    return number


def show(value: Any) -> str:
    """Write the beginning of what a node has sent."""
    text = f"0x{value[:_SHOWN_CHARACTERS].hex()}" if isinstance(value, bytes) else str(value)
    return repr(text[:_SHOWN_CHARACTERS])


def read_logs(value: Any) -> list[Mapping[str, Any]]:
    """Read the logs that a node has sent, each still to be decoded; raises BadAnswer."""
    if isinstance(value, list) and all(isinstance(log, dict) for log in value):
        return value
    raise BadAnswer(f"the node sent {show(value)}, expected a list of logs")


def decode_log(log: Mapping[str, Any]) -> Event | None:
    """Decode one JSON-RPC log; None for a log that is none of ours. Raises BadAnswer."""
    try:
        return _decode_log(log)
    except UNREADABLE as e:
        raise BadAnswer(f"the node sent the log {show(log)}, which doesn't decode: {str(e)[:200]}") from e


def _decode_log(log: Mapping[str, Any]) -> Event | None:
    contract = _contract_at(log["address"].lower())
    topics = [read_bytes(topic) for topic in log["topics"]]
    entry = _events(contract).get(topics[0]) if contract and topics else None
    if contract is None or entry is None:
        return None
    indexed = [parameter for parameter in entry["inputs"] if parameter["indexed"]]
    plain = [parameter for parameter in entry["inputs"] if not parameter["indexed"]]
    values = [decode([_canonical(p)], topic)[0] for p, topic in zip(indexed, topics[1:], strict=True)]
    by_name = _named(indexed, values)
    by_name |= _named(plain, decode([_canonical(p) for p in plain], read_bytes(log["data"])))
    return Event(
        contract=contract,
        name=entry["name"],
        fields={name: by_name[name] for name in (snake_name(parameter["name"]) for parameter in entry["inputs"])},
        height=read_quantity(log["blockNumber"]),
        transaction_hash=read_bytes(log["transactionHash"]),
        log_index=read_quantity(log["logIndex"]),
    )


def topic_of(contract: str, event: str) -> bytes:
    """Return the first topic of an event."""
    for topic, entry in _events(contract).items():
        if entry["name"] == event:
            return topic
    raise BadArguments(f"{contract} has no event {event}")


def selector_of(entry: Mapping[str, Any]) -> bytes:
    """Return the four bytes that name a function or an error."""
    return keccak(_signature(entry).encode())[:4]


@lru_cache(maxsize=4096)
def checksummed(address: str) -> str:
    """Return an address in its mixed-case form (EIP-55)."""
    return str(to_checksum_address(address))


@lru_cache(maxsize=1024)
def snake_name(name: str) -> str:
    """Return an ABI name as the generated Python spells it."""
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    return snake + "_" if snake in _KEYWORDS else snake


@cache
def load_abi(contract: str) -> tuple[Mapping[str, Any], ...]:
    """Read the generated ABI JSON of a contract."""
    return tuple(json.loads(files("contracts").joinpath("abi", f"{contract}.json").read_text(encoding="utf-8")))


@cache
def _functions(contract: str) -> dict[str, Mapping[str, Any]]:
    return {entry["name"]: entry for entry in load_abi(contract) if entry["type"] == "function"}


@cache
def _events(contract: str) -> dict[bytes, Mapping[str, Any]]:
    return {keccak(_signature(entry).encode()): entry for entry in load_abi(contract) if entry["type"] == "event"}


@cache
def _errors() -> dict[bytes, Mapping[str, Any]]:
    return {
        selector_of(entry): entry for contract in ADDRESSES for entry in load_abi(contract) if entry["type"] == "error"
    }


def _contract_at(address: str) -> str | None:
    return next((name for name, known in ADDRESSES.items() if known == address), None)


def _signature(entry: Mapping[str, Any]) -> str:
    return f"{entry['name']}({','.join(_canonical(parameter) for parameter in entry['inputs'])})"


def _canonical(parameter: Mapping[str, Any]) -> str:
    kind: str = parameter["type"]
    if not kind.startswith("tuple"):
        return kind
    inner = ",".join(_canonical(component) for component in parameter["components"])
    return f"({inner}){kind.removeprefix('tuple')}"


def _plain(argument: Any) -> Any:
    if is_dataclass(argument) and not isinstance(argument, type):
        return tuple(_plain(getattr(argument, field.name)) for field in fields(argument))
    if isinstance(argument, list | tuple):
        return [_plain(item) for item in argument]
    return argument


def _named(parameters: Sequence[Mapping[str, Any]], values: Sequence[Any]) -> dict[str, Any]:
    return {snake_name(p["name"]): _typed(p, value) for p, value in zip(parameters, values, strict=True)}


def _typed(parameter: Mapping[str, Any], value: Any) -> Any:
    kind: str = parameter["type"]
    if kind.endswith("[]"):
        item = {**parameter, "type": kind[:-2]}
        return tuple(_typed(item, each) for each in value)
    if kind == "tuple":
        struct = parameter["internalType"].removeprefix("struct ").removesuffix("[]")
        dataclass_type, enums = _dataclass_of(_PYTHON_STRUCT.get(struct, struct))
        values = _named(parameter["components"], value)
        return dataclass_type(**{name: enums[name](v) if name in enums else v for name, v in values.items()})
    return checksummed(value) if kind == "address" else value


@cache
def _dataclass_of(name: str) -> tuple[Any, dict[str, type[IntEnum]]]:
    found = getattr(types, name)
    hints = get_type_hints(found)
    return found, {field: hint for field, hint in hints.items() if isinstance(hint, type) and issubclass(hint, IntEnum)}
