"""What an examination of a node can say: a list of findings, each with what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at."""

    subject: str
    """Such as "disk" or "clock"."""
    level: Level
    """A problem keeps the node from working, or will."""
    what: str
    """What was found, with both values where two disagree."""
    next_step: str = ""
    """What to do; empty where nothing is to be done."""


def ok(subject: str, what: str) -> Finding:
    """Say that a thing is as it should be."""
    return Finding(subject=subject, level=Level.OK, what=what)


def warn(subject: str, what: str, next_step: str) -> Finding:
    """Say that a thing will cause trouble."""
    return Finding(subject=subject, level=Level.WARNING, what=what, next_step=next_step)


def problem(subject: str, what: str, next_step: str) -> Finding:
    """Say that a thing is wrong."""
    return Finding(subject=subject, level=Level.PROBLEM, what=what, next_step=next_step)
