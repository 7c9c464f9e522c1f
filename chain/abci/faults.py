"""Places where a test kills the application, to prove that a restart loses nothing (CHAIN.md, crash table)."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from enum import StrEnum


class FaultPoint(StrEnum):
    """Where the process dies."""

    IN_FINALIZE = "in-finalize"
    """In FinalizeBlock, before anything is durable."""
    BEFORE_COMMIT = "before-commit"
    """In Commit, before the block is durable."""
    AFTER_COMMIT = "after-commit"
    """In Commit, when the block is durable and the answer not yet sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Die at a point of a block."""

    point: FaultPoint
    height: int


def parse_fault(text: str) -> Fault:
    """Read ``point:height``, such as ``before-commit:5``; raises ValueError."""
    point, _, height = text.partition(":")
    return Fault(point=FaultPoint(point), height=int(height))


def die_if_due(fault: Fault | None, point: FaultPoint, height: int) -> None:
    """Kill this process as ``kill -9`` would, if the fault is for here and now."""
    if fault is not None and fault.point is point and fault.height == height:
        os.kill(os.getpid(), signal.SIGKILL)
