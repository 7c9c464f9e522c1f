"""Hashing the shards of a stripe column by column while they are in the cache, in several threads if there are some.

Columns are the same bytes of all pieces of a stripe. Each range of them is coded and hashed block by block by one
thread; ranges meet at borders of leaves, so the leaf hashes of all ranges in order are those of the shards. Invariant:
the builders end as if one thread had given them all bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor

from da.core.merkle import BULK_LEAF_BYTES, RootBuilder

CACHE_BYTES = 1536 * 1024
"""Of all shards together that are coded and hashed at once: three quarters of a second-level cache of 2 MiB."""

NUM_RANGES = 8
"""Of a stripe: twice the threads of a client, so that one which is held up holds up an eighth."""

MIN_RANGE_BYTES = 256 * 1024
"""Columns of a range at least; less is not worth a thread's while."""

Coder = Callable[[int, int], Sequence[memoryview]]
"""Returns columns start to stop of every shard that is hashed, made if need be; valid until the next call."""


def hash_columns(
    builders: Sequence[RootBuilder],
    num_columns: int,
    open_coder: Callable[[], Coder],
    *,
    leaf_bytes: int,
    num_shards: int,
    executor: Executor | None = None,
) -> None:
    """Give each builder the next ``num_columns`` bytes of its shard; all have taken equally many so far.

    Every thread opens a coder of its own. ``num_shards`` is how many shards are walked through at once.
    """
    if not builders:
        return
    block_bytes = compute_block_bytes(num_shards)
    head = -builders[0].size_bytes % leaf_bytes
    step = max(block_bytes, leaf_bytes)
    width = max(MIN_RANGE_BYTES, -(-(num_columns - head) // NUM_RANGES))
    width = -(-width // step) * step
    cuts = [0, *range(head + width, num_columns, width), num_columns] if executor is not None else [0, num_columns]
    parts = [builders, *([RootBuilder(leaf_bytes=leaf_bytes) for _ in builders] for _ in cuts[2:])]

    def walk(start: int, stop: int, part: Sequence[RootBuilder]) -> None:
        coder = open_coder()
        for at in range(start, stop, block_bytes):
            for builder, piece in zip(part, coder(at, min(at + block_bytes, stop)), strict=True):
                builder.update(piece)

    for _ in (map if executor is None else executor.map)(walk, cuts, cuts[1:], parts):
        pass
    for part in parts[1:]:
        for builder, other in zip(builders, part, strict=True):
            builder.extend(other)


def compute_block_bytes(num_shards: int) -> int:
    """Return the columns that are coded and hashed at once: whole leaves, and all shards within the cache."""
    return max(1, CACHE_BYTES // max(1, num_shards) // BULK_LEAF_BYTES) * BULK_LEAF_BYTES
