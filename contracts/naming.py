"""Names and types of an ABI declaration in JSON, Solidity and Python.

Invariant: pure functions of the declarations in ``chain.core.abi``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from chain.core.abi.declare import Contract, Field, Struct
from chain.core.abi.enumerations import ENUM_OF_FIELD

_PYTHON_KEYWORDS = frozenset({"from", "import", "in", "is", "pass", "return"})
"""Those that appear as ABI names get a trailing underscore in Python."""

_PYTHON_NAME_OF_STRUCT = {"Tier": "TierInfo"}
"""Structs whose Python name differs: ``Tier`` is the bare number elsewhere."""


def json_type(field: Field) -> str:
    """Return the ABI JSON type: ``tuple`` for a struct."""
    kind = "tuple" if isinstance(field.kind, Struct) else field.kind
    return kind + ("[]" if field.is_array else "")


def solidity_type(field: Field) -> str:
    """Return the type as Solidity writes it."""
    kind = field.kind.name if isinstance(field.kind, Struct) else field.kind
    return kind + ("[]" if field.is_array else "")


def python_struct_name(struct: Struct) -> str:
    """Return the name of the struct's dataclass."""
    return _PYTHON_NAME_OF_STRUCT.get(struct.name, struct.name)


def python_type(field: Field, struct: Struct | None = None) -> str:
    """Return the annotation of a value; ``struct`` is where the field stands, for its enumeration."""
    if isinstance(field.kind, Struct):
        kind = python_struct_name(field.kind)
    elif struct is not None and (struct.name, field.name) in ENUM_OF_FIELD:
        kind = ENUM_OF_FIELD[struct.name, field.name]
    elif field.kind == "bool":
        kind = "bool"
    elif field.kind in ("address", "string"):
        kind = "str"
    elif field.kind.startswith("bytes"):
        kind = "bytes"
    else:
        kind = "int"
    return f"tuple[{kind}, ...]" if field.is_array else kind


def python_name(name: str) -> str:
    """Turn camelCase into snake_case, clear of keywords."""
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    return snake + "_" if snake in _PYTHON_KEYWORDS else snake


def structs_of(contract: Contract) -> tuple[Struct, ...]:
    """Return the structs of a contract, inner before outer, each once."""
    found: dict[str, Struct] = {}
    for function in contract.functions:
        for field in function.inputs + function.outputs:
            for struct in _structs_in(field):
                found.setdefault(struct.name, struct)
    return tuple(found.values())


def _structs_in(field: Field) -> Iterator[Struct]:
    if isinstance(field.kind, Struct):
        for inner in field.kind.fields:
            yield from _structs_in(inner)
        yield field.kind
