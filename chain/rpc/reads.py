"""Reads of the system contracts with arguments as a person types them: the page's form and ``/api/read``.

Invariant: only views are offered, so whatever is asked changes nothing; text that is no argument of the declared
type is InvalidParams with the parameter's name and what it should look like.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from chain.core.abi.codec import canonical_type, signature
from chain.core.abi.declare import Field, Function, Mutability
from chain.core.contracts.registry import CODECS
from chain.rpc.contract_views import read_view
from chain.rpc.faults import InvalidParams
from chain.rpc.session import Session
from chain.rpc.values import hex_data, parse_data

_UINT = re.compile(r"uint(\d+)")
_FIXED_BYTES = re.compile(r"bytes(\d+)")


def describe_interface() -> list[dict[str, Any]]:
    """Return the views of each system contract: name, parameters with an example each, what they return."""
    return [
        {
            "contract": codec.contract.name,
            "address": hex_data(codec.contract.address),
            "doc": codec.contract.doc,
            "functions": [_describe(function) for function in codec.contract.functions if _is_view(function)],
        }
        for codec in CODECS.values()
    ]


def read_from_text(session: Session, contract: str, function: str, arguments: Mapping[str, str]) -> Any:
    """Call a view with named arguments as text; raises InvalidParams, CallFailed."""
    codecs = {codec.contract.name: codec for codec in CODECS.values()}
    if contract not in codecs:
        raise InvalidParams(f"contract is {contract[:40]!r}, expected one of {', '.join(codecs)}")
    codec = codecs[contract].by_name.get(function)
    if codec is None or not _is_view(codec.function):
        views = ", ".join(each.name for each in codecs[contract].contract.functions if _is_view(each))
        raise InvalidParams(f"{contract} has no view {function[:40]!r}, expected one of {views}")
    inputs = codec.function.inputs
    unknown = sorted(set(arguments) - {field.name for field in inputs})
    if unknown:
        names = ", ".join(field.name for field in inputs) or "none"
        raise InvalidParams(f"{contract}.{function} has no argument {unknown[0][:40]!r}, expected {names}")
    return read_view(session, contract, function, *(_parse(field, arguments.get(field.name, "")) for field in inputs))


def _is_view(function: Function) -> bool:
    return function.mutability is Mutability.VIEW


def _describe(function: Function) -> dict[str, Any]:
    return {
        "name": function.name,
        "signature": signature(function.name, function.inputs),
        "doc": function.doc,
        "inputs": [
            {"name": field.name, "type": canonical_type(field), "example": _example(field)} for field in function.inputs
        ],
    }


def _example(field: Field) -> str:
    if field.is_array:
        return f"{_example(Field(name=field.name, kind=field.kind))}, ..."
    kind = str(field.kind)
    if kind == "address":
        return "0x and 40 hex digits"
    if match := _FIXED_BYTES.fullmatch(kind):
        return f"0x and {2 * int(match[1])} hex digits"
    return {"bool": "true", "string": "text", "bytes": "0x..."}.get(kind, "1")


def _parse(field: Field, text: str) -> Any:
    text = text.strip()
    if field.is_array:
        items = [each for each in re.split(r"[\s,\[\]]+", text) if each]
        return [_parse(Field(name=field.name, kind=field.kind), each) for each in items]
    kind = str(field.kind)
    if match := _UINT.fullmatch(kind):
        return _parse_number(field.name, text, int(match[1]))
    if kind == "address":
        return parse_data(text, field.name, num_bytes=20)
    if match := _FIXED_BYTES.fullmatch(kind):
        return parse_data(text, field.name, num_bytes=int(match[1]))
    raise InvalidParams(f"{field.name} is of type {kind}, which no form can take: use eth_call")


def _parse_number(name: str, text: str, num_bits: int) -> int:
    if not re.fullmatch(r"0x[0-9a-fA-F]{1,64}|[0-9]{1,78}", text):
        raise InvalidParams(f"{name} is {text[:40]!r}, expected a number such as 1")
    number = int(text, 0) if text.startswith("0x") else int(text)
    if number >= 1 << num_bits:
        raise InvalidParams(f"{name} is {text[:40]}, expected 0 .. 2^{num_bits} - 1")
    return number
