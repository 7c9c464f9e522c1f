"""A random linear check of the encoding, by hashing only (DESIGN 5, DA.md *Hashes and proofs*; da/SPEC.md, *Folds*).

A shard is folded into T bytes by T random linear functionals over GF(2^8), the same ones for every shard. Folding
commutes with the code, so the folds of the n shards are code words too: whoever has the folds of the k data shards can
check one shard alone. The functionals come from the hash of the shard roots, and the blob id binds roots and folds, so
an encoder must choose shards before it knows them. This is the idea of ZODA.

Each functional has three levels, all with coefficients of its own: blocks of 16 KiB into one, its 32 parts of 512 bytes
into one, its 512 bytes into one. A shard that is off the code passes one functional with at most 3/256, hence all T
with at most (3/256)^T: 2^-115 for T = 18, 2^-154 for T = 24; summed over all choices of k + 1 shards, below 2^-96.

Coefficients, bytes of BLAKE3's extendable output over everything that comes before the folds in the header::

    offset 0             T x 32    second level, functional by functional
           32 T          T x 512   third level
           544 T + b T   T         first level, of block b
"""

from __future__ import annotations

from collections.abc import Sequence

import blake3

from da.core.hashing import Tag
from da.core.matrix import compute_generator_rows, multiplication_tables, multiply_row

FOLD_BLOCK_BYTES = 16384
"""First level: blocks of so many bytes become one. As in DA.md; 32 of them fit a second-level cache."""

FOLD_PART_BYTES = 512
"""Second level: parts of so many bytes become one."""

NUM_PARTS = FOLD_BLOCK_BYTES // FOLD_PART_BYTES
"""32 parts a block."""

MIN_FOLDED_SHARD_BYTES = 4097
"""Shards up to 4 KiB have no folds: a reader's re-encoding finds their faults, and small blobs come in thousands."""

MAX_SMALL_CODE_SHARDS = 16
"""Up to so many shards T is 18, above 24: there are more choices of k + 1 shards to be wrong about."""


def compute_num_folds(num_shards: int) -> int:
    """Return T, the number of functionals for a code of n shards."""
    return 18 if num_shards <= MAX_SMALL_CODE_SHARDS else 24


class FoldSeed:
    """The coefficients of one blob; reading any part of them costs the same."""

    __slots__ = ("_hasher", "num_folds")

    def __init__(self, commitment: bytes, *, num_folds: int) -> None:
        """Derive from ``commitment``, which holds code, size and all shard roots."""
        self._hasher = blake3.blake3(commitment, derive_key_context=Tag.FOLD.value)
        self.num_folds = num_folds

    def get_block_coefficients(self, block_index: int, num_blocks: int) -> bytes:
        """Return T bytes for each of ``num_blocks`` blocks from ``block_index`` on."""
        start = (NUM_PARTS + FOLD_PART_BYTES + block_index) * self.num_folds
        return self._hasher.digest(length=num_blocks * self.num_folds, seek=start)

    def get_part_coefficients(self) -> bytes:
        """Return 32 bytes for each functional."""
        return self._hasher.digest(length=self.num_folds * NUM_PARTS)

    def get_byte_coefficients(self) -> bytes:
        """Return 512 bytes for each functional."""
        return self._hasher.digest(length=self.num_folds * FOLD_PART_BYTES, seek=self.num_folds * NUM_PARTS)


def compute_expected_fold(data_folds: Sequence[bytes], shard_index: int, *, num_shards: int) -> bytes:
    """Return the fold that shard ``shard_index`` must have when the k data shards have ``data_folds``."""
    return multiply_row(compute_generator_rows(len(data_folds), num_shards)[shard_index], data_folds)


def compute_fold(seed: FoldSeed, shard: bytes) -> bytes:
    """Fold a shard, plainly: the meaning of what ``da.folding`` does fast."""
    tables = multiplication_tables()
    num_blocks = -(-len(shard) // FOLD_BLOCK_BYTES)
    padded = shard.ljust(num_blocks * FOLD_BLOCK_BYTES, b"\0")
    coefficients = seed.get_block_coefficients(0, num_blocks)
    parts, bytes_ = seed.get_part_coefficients(), seed.get_byte_coefficients()
    folds = bytearray()
    for fold in range(seed.num_folds):
        blocks = [padded[at : at + FOLD_BLOCK_BYTES] for at in range(0, len(padded), FOLD_BLOCK_BYTES)]
        block = multiply_row(coefficients[fold :: seed.num_folds], blocks) if blocks else bytes(FOLD_BLOCK_BYTES)
        part = multiply_row(
            parts[fold * NUM_PARTS : (fold + 1) * NUM_PARTS],
            [block[at : at + FOLD_PART_BYTES] for at in range(0, FOLD_BLOCK_BYTES, FOLD_PART_BYTES)],
        )
        total = 0
        for factor, value in zip(bytes_[fold * FOLD_PART_BYTES :][:FOLD_PART_BYTES], part, strict=True):
            total ^= tables[factor][value]
        folds.append(total)
    return bytes(folds)
