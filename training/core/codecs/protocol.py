"""What a codec is: three promises about one tensor of one payload (SPEC, *Codecs*).

A codec may use floats to choose codes; what the codes mean is integers only.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

import torch

EXPONENT_WINDOW = 16
"""How far a payload's exponent may lie from the agreed one: an update made d rounds ago saw another state,
and an exponent moves at most 8 a settled round."""


class SlotKind(IntEnum):
    """How one tensor travels."""

    INT32 = 0
    INT8 = 1
    INT4 = 2
    LOW_RANK_INT4 = 3
    LOW_RANK_2BIT = 4
    SPARSE_2BIT = 5
    VECTOR = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """One tensor's place in a payload."""

    name: str
    """Parameter name."""
    kind: SlotKind
    """How it travels."""
    shape: tuple[int, ...]
    """Shape of the tensor."""
    rank: int
    """Components, at most min(shape); 0 where not low rank."""
    exponent: int
    """x as agreed at the base."""
    num_bytes: int
    """Length in the payload."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compressed:
    """An update as it is sent."""

    body: bytes
    """Bytes of the slot."""
    units: torch.Tensor
    """q: exactly what a reader decodes, int64 grid units."""
    warm: torch.Tensor | None
    """What the next call may start from (low rank: Q before quantising, float32)."""


class TensorCodec(Protocol):
    """Compress, judge and read one tensor."""

    def compress(self, units: torch.Tensor, slot: Slot, warm: torch.Tensor | None, seed: bytes) -> Compressed:
        """Return the nearest update that fits the slot; ``units`` is v, int64."""
        ...

    def validate(self, body: bytes, slot: Slot) -> None:
        """Refuse bytes that mean nothing, or that another body means as well where a bit of them is not read.

        Total, integers only: any bytes of the slot's length. Raises `PayloadRefusedError`.
        """
        ...

    def decode(self, body: bytes, slot: Slot) -> tuple[torch.Tensor, int]:
        """Return (int64 grid units, largest scale in grid units) of a valid body."""
        ...
