"""Folding shards as their bytes pass by, at the speed of ISA-L (da/core/folds.py says what a fold is).

A node folds the shard it receives and compares before it signs; a publisher folds the k data shards.
"""

from __future__ import annotations

from collections.abc import Sequence

from da.core.blob import BlobHeader, compute_fold_commitment
from da.core.errors import BadEncoding
from da.core.folds import (
    FOLD_BLOCK_BYTES,
    FOLD_RATIO,
    GROUP_BLOCKS,
    NUM_FURTHER_LEVELS,
    FoldSeed,
    compute_expected_fold,
    compute_num_folds,
)
from da.kernel import Array, Kernel, get_kernel

Buffer = bytes | bytearray | memoryview


class FoldBuilder:
    """Folds one shard from chunks of any size: ``update`` any number of times, then ``finish``."""

    def __init__(self, seed: FoldSeed, *, kernel: Kernel | None = None) -> None:
        self._seed = seed
        self._kernel = kernel or get_kernel()
        self._sums = self._kernel.open_sums(seed.num_folds, FOLD_BLOCK_BYTES)
        self._partial = bytearray()
        self._num_blocks = 0

    def update(self, chunk: Buffer) -> None:
        """Take the next bytes."""
        view = memoryview(chunk).cast("B") if len(chunk) else memoryview(b"")
        start = 0
        if self._partial:
            start = min(FOLD_BLOCK_BYTES - len(self._partial), len(view))
            self._partial += view[:start]
            if len(self._partial) < FOLD_BLOCK_BYTES:
                return
            self._take(memoryview(self._partial))
            self._partial = bytearray()
        while len(view) - start >= FOLD_BLOCK_BYTES:
            num_blocks = min((len(view) - start) // FOLD_BLOCK_BYTES, GROUP_BLOCKS - self._num_blocks % GROUP_BLOCKS)
            stop = start + num_blocks * FOLD_BLOCK_BYTES
            self._take(view[start:stop])
            start = stop
        self._partial += view[start:]

    def finish(self) -> bytes:
        """Return the fold of everything taken so far: T bytes."""
        if self._partial:
            self._take(memoryview(self._partial.ljust(FOLD_BLOCK_BYTES, b"\0")))
            self._partial = bytearray()
        values = self._sums.values
        for level in range(1, NUM_FURTHER_LEVELS + 1):
            values = self._fold_parts(level, values)
        return values.tobytes()

    def _take(self, blocks: memoryview) -> None:
        stop = self._num_blocks + len(blocks) // FOLD_BLOCK_BYTES
        self._sums.add(self._seed.get_block_factors(self._num_blocks, stop), blocks)
        self._num_blocks = stop

    def _fold_parts(self, level: int, blocks: Array) -> Array:
        """Cut the T blocks that lie in ``blocks`` into parts, and return T sums of all parts."""
        num_parts = FOLD_RATIO * self._seed.num_folds
        part_bytes = len(blocks) // num_parts
        sums = self._kernel.open_sums(self._seed.num_folds, part_bytes)
        for start in range(0, num_parts, GROUP_BLOCKS):
            stop = min(start + GROUP_BLOCKS, num_parts)
            parts = blocks.data[start * part_bytes : stop * part_bytes]
            sums.add(self._seed.get_part_factors(level, start, stop), parts)
        return sums.values


class EncodingCheck:
    """Compares a shard with the folds in its blob's header, while it comes in."""

    def __init__(self, header: BlobHeader, shard_index: int, *, kernel: Kernel | None = None) -> None:
        self._header = header
        self._shard_index = shard_index
        self._builder = FoldBuilder(make_seed(header), kernel=kernel) if header.folds else None

    def update(self, chunk: Buffer) -> None:
        """Take the next bytes of the shard."""
        if self._builder is not None:
            self._builder.update(chunk)

    def finish(self) -> None:
        """Check the whole shard; does nothing for a header without folds.

        Raises:
            BadEncoding: the shard is not what the code makes of the data under the header's folds.
        """
        if self._builder is None:
            return
        got = self._builder.finish()
        expected = compute_expected_fold(self._header.folds, self._shard_index, num_shards=self._header.num_shards)
        if got != expected:
            raise BadEncoding(shard=self._shard_index, expected=expected, got=got)


def make_seed(header: BlobHeader) -> FoldSeed:
    """Return the coefficients of a blob; they depend on everything in its header but the folds."""
    return FoldSeed(compute_fold_commitment(header), num_folds=compute_num_folds(header.num_shards))


def fold_pieces(seed: FoldSeed, pieces: Sequence[Buffer], *, kernel: Kernel | None = None) -> bytes:
    """Return the fold of a shard given as the pieces of its stripes."""
    builder = FoldBuilder(seed, kernel=kernel)
    for piece in pieces:
        builder.update(piece)
    return builder.finish()
