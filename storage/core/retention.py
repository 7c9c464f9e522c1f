"""Which checkpoints lie where: planned here, done by the mover (DESIGN 6; SPEC.md 13).

The newest n stay hot, every Nth is kept cold, the others go when nothing needs them. A move is copy, certify, flip,
grace, delete: the hot blobs of a checkpoint are released only when its cold copy is certified, the catalogue names it,
and the grace has passed. Payloads are the chain's business: pinned until a later checkpoint is certified.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from da.core.types import BlobId, Height
from storage.core.errors import InvalidRetention


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """What to keep of a run's checkpoints."""

    num_hot: int = 2
    """The newest so many stay hot, at least 1."""
    cold_every: int = 10
    """Versions that are multiples of this are kept cold; 0: none."""
    num_cold: int = 0
    """The newest so many cold ones are kept; 0: all."""
    grace_blocks: int = 200
    """Between the flip and the release of the hot copy (a minute): readers that have begun may end."""

    def __post_init__(self) -> None:
        """Refuse what would keep nothing.

        Raises: InvalidRetention.
        """
        if self.num_hot < 1:
            raise InvalidRetention(f"num_hot {self.num_hot}, expected at least 1: the newest checkpoint is in use")
        if min(self.cold_every, self.num_cold, self.grace_blocks) < 0:
            raise InvalidRetention(
                f"cold_every {self.cold_every}, num_cold {self.num_cold}, grace_blocks {self.grace_blocks}: all from 0"
            )


class Step(StrEnum):
    """How far a checkpoint has come."""

    HOT = "hot"
    """Its parts lie hot; nothing has been done."""
    COPIED = "copied"
    """Cold copies of all parts are certified; readers still take the hot ones."""
    FLIPPED = "flipped"
    """Readers take the cold copies; the hot ones wait for the grace to end."""
    COLD = "cold"
    """The hot ones were released."""
    DROPPED = "dropped"
    """Nothing of it is kept by this policy any more."""


class Action(StrEnum):
    """What the mover does next for one checkpoint."""

    COPY = "copy"
    FLIP = "flip"
    RELEASE_HOT = "release hot"
    DROP_HOT = "drop hot"
    """Release hot parts of a checkpoint that is not kept."""
    DROP_COLD = "drop cold"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """One certified checkpoint as the catalogue has it."""

    version: int
    step: Step
    hot: tuple[BlobId, ...]
    """Blobs of its parts, by part."""
    cold: tuple[BlobId, ...] = ()
    """Archives of its parts, by part; while it is HOT, those that were copied so far."""
    bases: tuple[BlobId, ...] = ()
    """Archives that its own build on: they must stay as long."""
    flipped_height: Height = Height(0)
    """When readers were told."""


def plan_retention(
    checkpoints: Sequence[Kept], retention: Retention, height: Height, *, newest_certified: int
) -> tuple[tuple[Action, Kept], ...]:
    """Return what to do now, oldest version first; an action for a checkpoint follows from its step alone.

    The newest certified checkpoint and those from it on are never touched. A cold checkpoint is not dropped while a
    kept one builds on it.
    """
    ordered = sorted(checkpoints, key=lambda kept: kept.version)
    hot_from = _find_hot_from(ordered, retention, newest_certified)
    wanted = _find_cold_wanted(ordered, retention, hot_from)
    plan: list[tuple[Action, Kept]] = []
    needed = _find_needed(ordered, wanted)
    for kept in ordered:
        if kept.version >= hot_from or kept.step is Step.DROPPED:
            continue
        is_wanted = kept.version in wanted or bool(needed.intersection(kept.cold))
        action = _plan_one(kept, is_wanted, retention, height)
        if action is not None:
            plan.append((action, kept))
    return tuple(plan)


def plan_aging(items: Sequence[Kept], grace_blocks: int, height: Height) -> tuple[tuple[Action, Kept], ...]:
    """Return what to do now for blobs that are all to go cold because they are old, such as logs; the oldest first."""
    policy = Retention(grace_blocks=grace_blocks)
    ordered = sorted(items, key=lambda kept: kept.version)
    planned = ((_plan_one(kept, True, policy, height), kept) for kept in ordered)
    return tuple((action, kept) for action, kept in planned if action is not None)


def _find_needed(ordered: Sequence[Kept], wanted: set[int]) -> set[BlobId]:
    """Return the archives that others build on, through all deltas; newer ones build on older ones only.

    Moves that have begun count, wanted or not: readers take them, and a newer archive may build on them.
    """
    needed: set[BlobId] = set()
    for kept in reversed(ordered):
        is_moving = kept.step in (Step.COPIED, Step.FLIPPED)
        if kept.version in wanted or is_moving or needed.intersection(kept.cold):
            needed.update(kept.bases)
    return needed


def _plan_one(kept: Kept, is_wanted: bool, retention: Retention, height: Height) -> Action | None:
    match kept.step:
        case Step.HOT:
            return Action.COPY if is_wanted else Action.DROP_HOT
        case Step.COPIED:
            return Action.FLIP
        case Step.FLIPPED:
            return Action.RELEASE_HOT if height >= kept.flipped_height + retention.grace_blocks else None
        case Step.COLD:
            return None if is_wanted else Action.DROP_COLD
        case _:
            return None


def _find_hot_from(ordered: Sequence[Kept], retention: Retention, newest_certified: int) -> int:
    versions = [kept.version for kept in ordered if kept.version <= newest_certified]
    if len(versions) < retention.num_hot:
        return 0
    return min(versions[-retention.num_hot], newest_certified)


def _find_cold_wanted(ordered: Sequence[Kept], retention: Retention, hot_from: int) -> set[int]:
    if retention.cold_every == 0:
        return set()
    versions = [
        kept.version for kept in ordered if kept.version < hot_from and kept.version % retention.cold_every == 0
    ]
    return set(versions[-retention.num_cold :] if retention.num_cold else versions)
