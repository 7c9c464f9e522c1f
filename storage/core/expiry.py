"""What to delete at a height: planned here, done by the collector (DESIGN 6, SPEC.md 4).

Invariant: a shard is deleted only because a height has passed.  What the chain did not say is never read as
permission: the caller passes answers only, so an error plans nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from da.core.types import BlobId, Height, ShardIndex

PINNED = 2**64 - 1
"""releaseHeight of a blob that the chain has pinned: kept without limit (Storage ABI, struct Blob)."""

UNKNOWN = 0
"""releaseHeight of a blob that was never certified."""

MAX_ASKED = 256
"""Blobs in one releaseHeights call (Storage ABI)."""

GRACE_BLOCKS = 20
"""Blocks after a due height before bytes go.  The chain's answer may come from a node that lags; a lease that was
renewed, or a certificate that was recorded, in the last blocks must not be overlooked.  6 s at 0.3 s a block."""

RECHECK_BLOCKS = 100
"""Blocks until a pinned shard, or one with a far release, is asked about again: a lease may end early (30 s)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldShard:
    """What the planner needs to know of one shard."""

    blob: BlobId
    shard: ShardIndex
    expiry: Height
    """The longest expiry that this node signed for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """The plan of one sweep."""

    delete: tuple[HeldShard, ...]
    """Past their release, or never certified and past their own expiry."""
    keep: tuple[tuple[HeldShard, Height, Height], ...]
    """(shard, release height that the chain said, height to look again)."""


def plan_questions(due: Sequence[HeldShard]) -> tuple[tuple[BlobId, ...], ...]:
    """Return the batches of distinct blobs to ask the chain about, in order of first appearance."""
    blobs = tuple(dict.fromkeys(held.blob for held in due))
    return tuple(blobs[start : start + MAX_ASKED] for start in range(0, len(blobs), MAX_ASKED))


def plan_doubts(due: Sequence[HeldShard], releases: Mapping[BlobId, int], height: Height) -> tuple[BlobId, ...]:
    """Return blobs that the chain has released before this node's own word ends: was that word in a certificate?

    Their signedHeights decide: an owner that released its lease frees the node, a receipt that may still be certified
    does not.
    """
    early = (
        held.blob
        for held in due
        if 0 < releases.get(held.blob, UNKNOWN) < held.expiry and releases[held.blob] + GRACE_BLOCKS <= height
    )
    return tuple(dict.fromkeys(early))


def plan_sweep(
    due: Sequence[HeldShard],
    releases: Mapping[BlobId, int],
    height: Height,
    signed: Mapping[BlobId, int] | None = None,
) -> Sweep:
    """Return what to delete and what to keep at ``height``.

    ``releases`` holds the chain's answers; a shard whose blob has none is in neither list, so it stays as it is and
    is asked about again.  A certified blob goes at its release height; an uncertified one at its own expiry, after
    which no certificate is accepted any more.  Both wait GRACE_BLOCKS.
    """
    delete: list[HeldShard] = []
    keep: list[tuple[HeldShard, Height, Height]] = []
    for held in due:
        release = releases.get(held.blob)
        if release is None:
            continue
        # A store also keeps its own word: a receipt for longer than the chain's lease still binds, unless the chain
        # has seen it in a certificate, and the lease was given back.
        is_word_known = held.expiry <= (signed or {}).get(held.blob, 0)
        end = held.expiry if release == UNKNOWN else release if is_word_known else max(release, held.expiry)
        if end + GRACE_BLOCKS <= height:
            delete.append(held)
        else:
            again = min(end + GRACE_BLOCKS, height + RECHECK_BLOCKS)
            keep.append((held, Height(release), Height(again)))
    return Sweep(delete=tuple(delete), keep=tuple(keep))


def compute_first_due(expiry: Height) -> Height:
    """Return the height at which a new shard is looked at for the first time."""
    return Height(expiry + GRACE_BLOCKS)
