"""Which lies there are for a simulated member (SPEC, *Aggregation*); `training.attacks` makes them, and loads torch."""

from __future__ import annotations

from enum import StrEnum


class AttackKind(StrEnum):
    """What an attacker sends."""

    SIGN_FLIP = "sign_flip"
    ALIE = "alie"
    COPY = "copy"
    ZERO = "zero"
