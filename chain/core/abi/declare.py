"""A small vocabulary to declare a contract's ABI once (Solidity ABI specification, JSON form).

Everything else is derived from a declaration: selectors, event topics, the JSON that web3.py and cast
read, and the Solidity interface.  Invariant: one declaration, no second copy of a signature anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Mutability(StrEnum):
    """Solidity's state mutability of a function."""

    VIEW = "view"
    NONPAYABLE = "nonpayable"
    PAYABLE = "payable"


@dataclass(frozen=True, slots=True)
class Struct:
    """A Solidity struct: a named tuple of fields."""

    name: str
    fields: tuple[Field, ...]
    doc: str = ""


@dataclass(frozen=True, slots=True)
class Field:
    """One named value: ``kind`` is an elementary type, or a Struct, with ``is_array`` for T[]."""

    name: str
    kind: str | Struct
    is_array: bool = False
    is_indexed: bool = False


@dataclass(frozen=True, slots=True)
class Function:
    """A function of a contract."""

    name: str
    inputs: tuple[Field, ...]
    outputs: tuple[Field, ...]
    mutability: Mutability
    doc: str


@dataclass(frozen=True, slots=True)
class Event:
    """An event, named in the past tense."""

    name: str
    fields: tuple[Field, ...]
    doc: str = ""


@dataclass(frozen=True, slots=True)
class Error:
    """A custom error; carries both values where two values disagree, the expected one first."""

    name: str
    fields: tuple[Field, ...]
    doc: str = ""


@dataclass(frozen=True, slots=True)
class Contract:
    """A system contract: its fixed address and its whole interface."""

    name: str
    address: bytes
    functions: tuple[Function, ...]
    events: tuple[Event, ...]
    errors: tuple[Error, ...]
    doc: str = ""


def fields(*declarations: str | tuple[str | Struct, str]) -> tuple[Field, ...]:
    """Read declarations such as ``"uint64 run"``, ``"indexed address worker"``, ``(STRUCT, "params")``.

    An array is written ``"address[] workers"`` or ``(STRUCT, "updates[]")``.
    """
    return tuple(_field(declaration) for declaration in declarations)


def struct(name: str, doc: str, *declarations: str | tuple[str | Struct, str]) -> Struct:
    """Declare a struct."""
    return Struct(name=name, fields=fields(*declarations), doc=doc)


def view(name: str, inputs: tuple[Field, ...], outputs: tuple[Field, ...], doc: str) -> Function:
    """Declare a read-only function."""
    return Function(name=name, inputs=inputs, outputs=outputs, mutability=Mutability.VIEW, doc=doc)


def call(name: str, inputs: tuple[Field, ...], doc: str, outputs: tuple[Field, ...] = ()) -> Function:
    """Declare a function that changes state and takes no money."""
    return Function(name=name, inputs=inputs, outputs=outputs, mutability=Mutability.NONPAYABLE, doc=doc)


def payable(name: str, inputs: tuple[Field, ...], doc: str, outputs: tuple[Field, ...] = ()) -> Function:
    """Declare a function that changes state and takes money."""
    return Function(name=name, inputs=inputs, outputs=outputs, mutability=Mutability.PAYABLE, doc=doc)


def event(name: str, doc: str, *declarations: str | tuple[str | Struct, str]) -> Event:
    """Declare an event."""
    return Event(name=name, fields=fields(*declarations), doc=doc)


def error(name: str, doc: str, *declarations: str | tuple[str | Struct, str]) -> Error:
    """Declare a custom error."""
    return Error(name=name, fields=fields(*declarations), doc=doc)


def _field(declaration: str | tuple[str | Struct, str]) -> Field:
    if isinstance(declaration, tuple):
        kind, name = declaration
        return Field(name=name.removesuffix("[]"), kind=kind, is_array=name.endswith("[]"))
    words = declaration.split()
    is_indexed = words[0] == "indexed"
    kind_word, name = words[-2], words[-1]
    return Field(name=name, kind=kind_word.removesuffix("[]"), is_array=kind_word.endswith("[]"), is_indexed=is_indexed)
