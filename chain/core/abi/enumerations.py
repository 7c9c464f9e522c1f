"""The closed choices behind uint8 fields, read from the struct's own documentation.

"state: 0 none, 1 OPEN, 2 REVEAL" in a struct's doc names the values of its field ``state``; bindings, page and
metrics take the names from here.  Invariant: a value has one name, in one place.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from chain.core.abi.declare import Struct

ENUM_OF_FIELD = {
    ("RunInfo", "state"): "RunState",
    ("RoundInfo", "state"): "RoundState",
    ("Member", "state"): "MemberState",
    ("Update", "fate"): "UpdateFate",
    ("Update", "reason"): "RefusalReason",
    ("Checkpoint", "state"): "CheckpointState",
    ("StorageNode", "state"): "StorageNodeState",
    ("Blob", "state"): "BlobState",
    ("Proposal", "state"): "ProposalState",
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
    """Name of the choice, e.g. RoundState."""
    members: tuple[tuple[int, str], ...]
    """(value, NAME), ascending."""


def enumerations_of(struct: Struct) -> tuple[Enumeration, ...]:
    """Read a struct's enumerations out of its documentation, or raise UndocumentedEnum."""
    return tuple(
        _read_enumeration(struct, field.name, ENUM_OF_FIELD[struct.name, field.name])
        for field in struct.fields
        if (struct.name, field.name) in ENUM_OF_FIELD
    )


def _read_enumeration(struct: Struct, field: str, name: str) -> Enumeration:
    found = re.search(rf"\b{field}: ((?:{_MEMBER_PATTERN}(?:, )?)+)", struct.doc)
    if found is None:
        raise UndocumentedEnum(struct.name, field, struct.doc)
    members = tuple((int(value), word.upper()) for value, word in re.findall(_MEMBER_PATTERN, found.group(1)))
    return Enumeration(name=name, members=members)


def enumeration_name_of(struct: Struct, field: str) -> str | None:
    """Return the name of a field's enumeration, None where it is a plain number."""
    return ENUM_OF_FIELD.get((struct.name, field))
