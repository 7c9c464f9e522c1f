"""Names and types of an ABI declaration in JSON, Solidity and Python.

The enumerations are read from the struct's own documentation ("state: 0 none, 1 OPEN, 2 REVEAL"), so that a
value has one name in one place.  Invariant: pure functions of the declarations in ``chain.core.abi``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from chain.core.abi.declare import Contract, Field, Struct

_PYTHON_KEYWORDS = frozenset({"from", "import", "in", "is", "pass", "return"})
"""Those that appear as ABI names get a trailing underscore in Python."""

_PYTHON_NAME_OF_STRUCT = {"Tier": "TierInfo"}
"""Structs whose Python name differs: ``Tier`` is the bare number elsewhere."""

_ENUM_OF_FIELD = {
    ("RunInfo", "state"): "RunState",
    ("RoundInfo", "state"): "RoundState",
    ("Member", "state"): "MemberState",
    ("Update", "fate"): "UpdateFate",
    ("Update", "reason"): "RefusalReason",
    ("Checkpoint", "state"): "CheckpointState",
    ("StorageNode", "state"): "StorageNodeState",
    ("Blob", "state"): "BlobState",
}
"""(struct, field) -> name of the enumeration its documentation lists."""

_MEMBER_PATTERN = r"(\d+) ([A-Za-z_]+)(?: \([^)]*\))?"


class UndocumentedEnum(Exception):
    """A field that should be an enumeration has no list of values in its struct's documentation."""

    def __init__(self, struct: str, field: str, doc: str) -> None:
        """Name the field and show the text that was searched."""
        super().__init__(
            f"{struct}.{field}: expected '{field}: 0 none, 1 NAME, ...' in the struct's doc, got {doc!r}; "
            "write the values into the declaration in chain/core/abi"
        )
        self.struct = struct
        self.field = field


@dataclass(frozen=True, slots=True, kw_only=True)
class Enumeration:
    """A closed choice behind a uint8."""

    name: str
    """Python name."""
    members: tuple[tuple[int, str], ...]
    """(value, NAME), ascending."""


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
    elif struct is not None and (struct.name, field.name) in _ENUM_OF_FIELD:
        kind = _ENUM_OF_FIELD[struct.name, field.name]
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


def enumerations_of(struct: Struct) -> tuple[Enumeration, ...]:
    """Read a struct's enumerations out of its documentation, or raise UndocumentedEnum."""
    return tuple(
        _read_enumeration(struct, field.name, _ENUM_OF_FIELD[struct.name, field.name])
        for field in struct.fields
        if (struct.name, field.name) in _ENUM_OF_FIELD
    )


def _read_enumeration(struct: Struct, field: str, name: str) -> Enumeration:
    found = re.search(rf"\b{field}: ((?:{_MEMBER_PATTERN}(?:, )?)+)", struct.doc)
    if found is None:
        raise UndocumentedEnum(struct.name, field, struct.doc)
    members = tuple((int(value), word.upper()) for value, word in re.findall(_MEMBER_PATTERN, found.group(1)))
    return Enumeration(name=name, members=members)


def _structs_in(field: Field) -> Iterator[Struct]:
    if isinstance(field.kind, Struct):
        for inner in field.kind.fields:
            yield from _structs_in(inner)
        yield field.kind
