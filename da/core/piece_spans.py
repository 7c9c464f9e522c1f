"""Where the bytes of a range of a blob lie in its shards (da/SPEC.md, *Blobs* and *Ranges*)."""

from __future__ import annotations

from dataclasses import dataclass

from da.core.blob import iterate_stripes
from da.core.types import ShardIndex


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceSpan:
    """Neighbouring bytes of a blob in one data shard; half-open."""

    shard: ShardIndex
    """The data shard that holds them as they are, 0 .. k - 1."""
    shard_start: int
    """First byte in the shard."""
    shard_stop: int
    """First byte after them in the shard."""
    start: int
    """First byte in the blob."""


def plan_spans(size_bytes: int, num_data: int, *, start: int, stop: int) -> tuple[PieceSpan, ...]:
    """Return the pieces that hold bytes [start, stop) of a blob, in order; the code is systematic.

    >>> [(span.shard, span.shard_start, span.shard_stop) for span in plan_spans(10, 4, start=2, stop=7)]
    [(0, 2, 3), (1, 0, 3), (2, 0, 1)]
    """
    spans = []
    for stripe in iterate_stripes(size_bytes, num_data):
        if stripe.stop <= start or stripe.start >= stop:
            continue
        for shard in range(num_data):
            piece_start = stripe.start + shard * stripe.piece_bytes
            first = max(start, piece_start)
            last = min(stop, piece_start + stripe.piece_bytes, stripe.stop)
            if first < last:
                offset = stripe.piece_start - piece_start
                spans.append(
                    PieceSpan(
                        shard=ShardIndex(shard), shard_start=first + offset, shard_stop=last + offset, start=first
                    )
                )
    return tuple(spans)
