"""Who plays a run's histories: workers with a disk and a character, and how rough their world is."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from chain.core.types import Address
from da.core.hashing import Tag, compute_hash


def compute_digest(*parts: object) -> bytes:
    """Return a fixed 32-byte value of some words."""
    return compute_hash(Tag.RANDOM, repr(parts).encode())


@dataclass
class Actor:
    """A worker with a disk and a character."""

    name: str
    is_liar: bool = False
    pace: float = 0.6
    """Chance to act in a block."""
    down_until: int = 0
    version: int = -1
    """Version of the state on its disk, -1 for none."""
    root: bytes = b""
    """Root of that state."""
    held: dict[int, bytes] = field(default_factory=dict)
    """Roots of the versions it has seen by itself, for checkpoint parts."""
    is_forked: bool = False
    """Has seen a root on the chain that its own arithmetic denies."""
    has_left: bool = False

    @property
    def address(self) -> Address:
        return Address(compute_digest("actor", self.name)[:20])


@dataclass
class Odds:
    """How rough a history is: chances a block, or an act."""

    liars: float
    crash: float
    leave: float
    join: float
    erase: float
    withhold: float
    outage: float
    loss: float

    @classmethod
    def draw(cls, rng: random.Random) -> Odds:
        """Draw a history's character; many are calm in most respects."""

        def chance(rates: tuple[float, ...]) -> float:
            return rng.choice((0.0, *rates))

        return cls(
            liars=chance((0.2, 0.5)),
            crash=chance((0.005, 0.03)),
            leave=chance((0.002, 0.01)),
            join=chance((0.01, 0.04)),
            erase=chance((0.2, 0.6)),
            withhold=chance((0.05, 0.3)),
            outage=chance((0.002, 0.01)),
            loss=chance((0.02, 0.1)),
        )
