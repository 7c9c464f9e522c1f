"""A random linear check of the encoding, by hashing only (DESIGN 5, DA.md *Hashes and proofs*; da/SPEC.md, *Folds*).

A shard is folded into T bytes by T random linear functionals over GF(2^8), the same ones for every shard. Folding
commutes with the code, so the folds of the n shards are code words too: whoever has the folds of the k data shards can
check one shard alone. The functionals come from the hash of the shard roots, and the blob id binds roots and folds, so
an encoder must choose shards before it knows them. This is the idea of ZODA.

Four levels. The first takes the shard as blocks of 4096 bytes (the last padded with zeros) and makes T blocks of them,
each the sum of all blocks times random factors. Each further level cuts the T blocks into 16 parts each and makes T
parts of all 16 T, until a part is one byte: 4096, 256, 16, 1. An error that enters a level leaves it unseen in all T
sums with at most 256^-T, so it passes with at most 4 x 256^-T: 2^-118 for T = 15, 2^-158 for T = 20.

Factors, bytes of BLAKE3's extendable output over everything that comes before the folds in the header. Blocks and parts
go in groups of 64; a group has T rows of 64 factors, of which a last, shorter group uses the first ones::

    group                 0 .. G - 1    second level; G = ceil(T / 4)
                          G .. 2 G - 1  third level
                        2 G .. 3 G - 1  fourth level
                        3 G + g         first level, blocks 64 g .. 64 g + 63
    offset of a group    64 T x its number
"""

from __future__ import annotations

from collections.abc import Sequence

import blake3

from da.core.hashing import Tag
from da.core.matrix import compute_generator_rows, multiply_row

FOLD_BLOCK_BYTES = 4096
"""First level: 64 blocks and their T sums fit a second-level cache, and most of them a first-level one."""

FOLD_RATIO = 16
"""Parts of a block on each further level: 4096 is its cube."""

NUM_FURTHER_LEVELS = 3
"""After the first."""

GROUP_BLOCKS = 64
"""Blocks or parts that are summed in one call: what the fast kernel takes at most."""

MIN_FOLDED_SHARD_BYTES = 4097
"""Shards up to 4 KiB have no folds: a reader's re-encoding finds their faults, and small blobs come in thousands."""

MAX_SMALL_CODE_SHARDS = 16
"""Up to so many shards T is 15, above 20: there are more choices of k + 1 shards to be wrong about."""


def compute_num_folds(num_shards: int) -> int:
    """Return T, the number of functionals for a code of n shards."""
    return 15 if num_shards <= MAX_SMALL_CODE_SHARDS else 20


class FoldSeed:
    """The factors of one blob; reading any part of them costs the same."""

    __slots__ = ("_groups_per_level", "_hasher", "num_folds")

    def __init__(self, commitment: bytes, *, num_folds: int) -> None:
        """Derive from ``commitment``, which holds code, size and all shard roots."""
        self._hasher = blake3.blake3(commitment, derive_key_context=Tag.FOLD.value)
        self.num_folds = num_folds
        self._groups_per_level = -(-FOLD_RATIO * num_folds // GROUP_BLOCKS)

    def get_block_factors(self, start: int, stop: int) -> bytes:
        """Return T rows of factors, one after the other, for blocks ``start`` to ``stop``, all in one group."""
        return self._get_factors(NUM_FURTHER_LEVELS * self._groups_per_level, start, stop)

    def get_part_factors(self, level: int, start: int, stop: int) -> bytes:
        """Do the same for parts of a further ``level``, 1 to 3."""
        return self._get_factors((level - 1) * self._groups_per_level, start, stop)

    def _get_factors(self, first_group: int, start: int, stop: int) -> bytes:
        group, column = divmod(start, GROUP_BLOCKS)
        num_columns, matrix_bytes = stop - start, GROUP_BLOCKS * self.num_folds
        assert 0 < num_columns <= GROUP_BLOCKS - column, f"blocks {start} to {stop} are not of one group"
        matrix = self._hasher.digest(length=matrix_bytes, seek=(first_group + group) * matrix_bytes)
        if num_columns == GROUP_BLOCKS:
            return matrix
        return b"".join(matrix[at : at + num_columns] for at in range(column, matrix_bytes, GROUP_BLOCKS))


def compute_expected_fold(data_folds: Sequence[bytes], shard_index: int, *, num_shards: int) -> bytes:
    """Return the fold that shard ``shard_index`` must have when the k data shards have ``data_folds``."""
    return multiply_row(compute_generator_rows(len(data_folds), num_shards)[shard_index], data_folds)


def compute_fold(seed: FoldSeed, shard: bytes) -> bytes:
    """Fold a shard, plainly: the meaning of what ``da.folding`` does fast."""
    blocks = [shard[at : at + FOLD_BLOCK_BYTES] for at in range(0, len(shard), FOLD_BLOCK_BYTES)]
    if blocks:
        blocks[-1] = blocks[-1].ljust(FOLD_BLOCK_BYTES, b"\0")
    sums = [bytes(FOLD_BLOCK_BYTES)] * seed.num_folds
    for start in range(0, len(blocks), GROUP_BLOCKS):
        stop = min(start + GROUP_BLOCKS, len(blocks))
        sums = _add(sums, seed.get_block_factors(start, stop), blocks[start:stop])
    for level in range(1, NUM_FURTHER_LEVELS + 1):
        width = len(sums[0]) // FOLD_RATIO
        parts = [block[at : at + width] for block in sums for at in range(0, len(block), width)]
        sums = [bytes(width)] * seed.num_folds
        for start in range(0, len(parts), GROUP_BLOCKS):
            stop = min(start + GROUP_BLOCKS, len(parts))
            sums = _add(sums, seed.get_part_factors(level, start, stop), parts[start:stop])
    return b"".join(sums)


def _add(sums: Sequence[bytes], factors: bytes, vectors: Sequence[bytes]) -> list[bytes]:
    """Return the sums with each row's combination of the vectors added."""
    ones, width = b"\1\1", len(vectors)
    rows = [factors[at : at + width] for at in range(0, len(factors), width)]
    return [multiply_row(ones, (total, multiply_row(row, vectors))) for total, row in zip(sums, rows, strict=True)]
