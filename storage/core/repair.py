"""What to rebuild first, and from whom: planned here, done by the repairer (DESIGN 6, SPEC.md 11).

A missing shard is one that the chain says a seat should have and the seat has not. Invariant: only shards of blobs that
the chain keeps for longer are planned, so nothing expired comes back (CASES 53, 62).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from da.core.types import BlobId, Epoch, Height, ShardIndex, Tier

LEAST_BLOCKS = 40
"""A blob that is released within so many blocks (12 s) is not rebuilt any more."""


ALL_SEATS = 2**64 - 1
"""Bitmap of 64 seats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobFacts:
    """What the chain says of a blob."""

    blob: BlobId
    tier: Tier
    epoch: Epoch
    """The committee that keeps it."""
    expiry: Height
    """End of its longest lease."""
    release: Height
    """First height at which it may be deleted."""
    is_live: bool
    signers: int = ALL_SEATS
    """Bitmap of the seats that signed for their shard and have not lost it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingShard:
    """A shard that should be here."""

    facts: BlobFacts
    shard: ShardIndex
    holders: tuple[ShardIndex, ...]
    """Seats that said they have theirs; others may have it too."""
    num_data: int
    """k of the blob's code, as far as it is known: the least number of holders that can rebuild it."""

    @property
    def margin(self) -> int:
        """How many more seats may fail before the blob is lost; negative: it may be lost already."""
        return len(self.holders) - self.num_data


def plan_missing(
    inventories: Mapping[ShardIndex, Iterable[BlobId]], own: Iterable[BlobId], *, least_holders: int = 1
) -> dict[BlobId, tuple[ShardIndex, ...]]:
    """Return the blobs that other seats of one epoch have and this one has not, with the seats that have them.

    Fewer than ``least_holders`` (k) can't give it back, and may be liars who list what does not exist.
    """
    kept = set(own)
    holders: dict[BlobId, list[ShardIndex]] = {}
    for seat, blobs in sorted(inventories.items()):
        for blob in blobs:
            if blob not in kept:
                holders.setdefault(blob, []).append(seat)
    return {blob: tuple(seats) for blob, seats in sorted(holders.items()) if len(seats) >= least_holders}


def compute_window_end(ends: Sequence[BlobId | None], *, num_liars: int) -> BlobId | None:
    """Return up to which blob all inventories can be compared, None for the end of all names.

    ``ends`` has where each seat's pages broke off, None where it had said everything. The ``num_liars`` lowest don't
    count: who lists a million names close together must not keep the others' names from being looked at.
    """
    broken = sorted(end for end in ends if end is not None)
    return broken[num_liars] if len(broken) > num_liars else None


def plan_repairs(missing: Sequence[MissingShard], height: Height) -> tuple[MissingShard, ...]:
    """Return what to rebuild, the lowest margin first, then what is released latest; nothing that is about to go."""
    wanted = [item for item in missing if should_rebuild(item.facts, height)]
    return tuple(sorted(wanted, key=lambda item: (item.margin, -item.facts.release, item.facts.blob, item.shard)))


def should_rebuild(facts: BlobFacts, height: Height) -> bool:
    """Tell whether a blob is worth rebuilding: live, kept for longer, and of a tier that is repaired."""
    return facts.is_live and facts.release > height + LEAST_BLOCKS and facts.tier is not Tier.TEMPORARY
