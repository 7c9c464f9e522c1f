"""One turn of the system contracts: what a call, or the end of a block, may look at and change.

The contracts and the round machine see only this class, so the chain, the simulator and the tests drive
the same code.  Events are collected by name; whoever owns the turn encodes them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from chain.core.state import Overlay
from chain.core.types import Address, Height


@dataclass(slots=True, kw_only=True)
class Turn:
    """State, height and seed going in; changes and events coming out."""

    state: Overlay
    """The overlay that is written to."""
    height: Height
    """The block being executed."""
    seed: bytes
    """32 bytes, the same for all validators, fixed when the block is decided."""
    genesis_hash: bytes
    """32 bytes: the chain."""
    events: list[tuple[Address, str, tuple[object, ...]]] = field(default_factory=list)
    """(contract, event name, values in declaration order)."""

    def emit(self, contract: Address, name: str, *values: object) -> None:
        """Record an event of a contract."""
        self.events.append((contract, name, values))
