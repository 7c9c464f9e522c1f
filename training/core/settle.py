"""One outer step of the agreed state (interface; the body follows)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from training.core.canonical import CanonicalState
from training.core.recipe import Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """What a round did to the agreed state."""

    state: CanonicalState
    """The state after the round; the very same object when nothing was counted."""
    refused: int
    """Bit i is set where payload i is refused."""
    num_accepted: int
    """Payloads counted; 0 leaves the state as it was."""


def settle(
    recipe: Recipe,
    state: CanonicalState,
    round_index: int,
    payloads: Sequence[bytes],
    *,
    rank: int,
    local_steps: int,
) -> Settlement:
    """Return the state after round ``round_index`` given its payloads in commit order. Pure, exact, total."""
    raise NotImplementedError


def settle_void(state: CanonicalState) -> Settlement:
    """Return the settlement of a VOID round: the state as it was."""
    return Settlement(state=state, refused=0, num_accepted=0)
