"""What a vote may propose about rank and H, and what it rests on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What a worker measured in the last rounds."""

    exchange_seconds: float
    """Dispersing its payload, committing it and fetching the others' of one round, without waiting for them."""
    step_seconds: float
    """One inner step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """Fields of a vote; 0 proposes nothing."""

    rank: int
    """r."""
    local_steps: int
    """H."""
