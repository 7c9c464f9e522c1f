"""When a failed audit becomes a challenge on the chain: decided here, sent by the accuser (SPEC.md 11).

A challenge costs the challenger its bond if the seat answers, so one failure is no reason: a seat is accused when it
failed the same leaf again and again over a while, and only so often in all. Invariant: a seat that proved the leaf
since, and an audit in which most others failed too (then it is our own link), accuse nobody.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from da.core.types import BlobId, Height, ShardIndex
from storage.core.errors import InvalidAccusationPolicy

MAX_SUSPICIONS = 256
"""Seats under suspicion at once; the oldest stay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccusationPolicy:
    """How sure a node is before it risks a bond, and how often it does."""

    strikes: int = 20
    """Failed audits of one leaf in a row."""
    min_blocks: int = 1_900
    """Between the first of them and the last (10 minutes): a machine that is being restarted is no thief."""
    every_blocks: int = 1_000
    """At most one challenge in so many blocks (5 minutes)."""

    def __post_init__(self) -> None:
        """Refuse what would accuse at once or without limit.

        Raises: InvalidAccusationPolicy.
        """
        if self.strikes < 1 or self.min_blocks < 0 or self.every_blocks < 1:
            raise InvalidAccusationPolicy(
                strikes=self.strikes, min_blocks=self.min_blocks, every_blocks=self.every_blocks
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspicion:
    """A seat that could not prove a leaf of a shard that it signed for."""

    blob: BlobId
    shard: ShardIndex
    leaf: int
    """The leaf that it failed to show, and is asked for again."""
    first_height: Height
    last_height: Height
    num_failed: int
    """In a row."""


Suspicions = tuple[Suspicion, ...]
"""Oldest first; one a (blob, shard)."""


def is_own_fault(num_failed: int, num_asked: int) -> bool:
    """Tell whether an audit says more about us: no more than half of those that were asked proved theirs."""
    return 2 * num_failed >= num_asked


def note_failure(suspicions: Suspicions, blob: BlobId, shard: ShardIndex, leaf: int, height: Height) -> Suspicions:
    """Return the suspicions after a seat failed to prove ``leaf``; the first leaf of a suspicion stays."""
    for index, item in enumerate(suspicions):
        if (item.blob, item.shard) == (blob, shard):
            more = replace(item, num_failed=item.num_failed + 1, last_height=height)
            return (*suspicions[:index], more, *suspicions[index + 1 :])
    if len(suspicions) >= MAX_SUSPICIONS:
        return suspicions
    new = Suspicion(blob=blob, shard=shard, leaf=leaf, first_height=height, last_height=height, num_failed=1)
    return (*suspicions, new)


def drop(suspicions: Suspicions, cleared: Iterable[tuple[BlobId, ShardIndex]]) -> Suspicions:
    """Return the suspicions without seats that have proved the leaf, or were accused."""
    gone = set(cleared)
    return tuple(item for item in suspicions if (item.blob, item.shard) not in gone)


def plan_accusation(
    suspicions: Sequence[Suspicion], policy: AccusationPolicy, height: Height, *, accused_at: Height | None
) -> Suspicion | None:
    """Return whom to challenge now, who has failed most often first; None: nobody, or it is too soon again."""
    if accused_at is not None and height < accused_at + policy.every_blocks:
        return None
    ripe = [
        item
        for item in suspicions
        if item.num_failed >= policy.strikes and item.last_height - item.first_height >= policy.min_blocks
    ]
    return max(ripe, key=lambda item: (item.num_failed, -item.first_height, item.blob, item.shard), default=None)
