"""What a blob is called and how it is cut (DESIGN 5; da/SPEC.md, *Blobs*).

A blob is cut into stripes of 64 MiB, a stripe into k equal pieces (the last padded with zeros), and the code adds
n - k more. Shard i is the concatenation of piece i of all stripes. The header binds code, size and shard roots; its
hash is the blob id. Invariant: a blob id names one byte string or none.

Header, canonical, big-endian::

    offset  0  u8        version, 1 or 3
            1  u8        matrix id, 1
            2  u8        k, number of data shards
            3  u8        n, number of shards, k..64
            4  u32       bytes of a Merkle leaf, a power of two, 64 .. 2^20
            8  u64       size of the blob in bytes, 0 .. 10^13
           16  n x 32    shard roots, by seat
    16 + 32 n  k x T     version 3: folds of the data shards (da/core/folds.py; T = 15 for n <= 16, else 20)

A publisher folds shards above 4 KiB, and nodes insist on it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from da.core.errors import FoldsMissing, MalformedHeader
from da.core.folds import MIN_FOLDED_SHARD_BYTES, compute_num_folds
from da.core.hashing import HASH_BYTES, Tag, compute_hash
from da.core.scheme import MAX_SEATS
from da.core.types import BlobId, ShardRoot

PLAIN_VERSION = 1
"""A header without folds."""

FOLDED_VERSION = 3
"""A header with folds: a shard's encoding can be checked alone. Version 2 had other, slower folds, and is refused."""

MATRIX_ID = 1
"""The generator matrix of ``da.core.matrix``: reedsolo's, over 0x11d with generator 2 and fcr 0."""

STRIPE_BYTES = 64 * 1024 * 1024
"""Data bytes of every stripe but the last: bounds the memory of coder and reader (DESIGN 5)."""

MAX_BLOB_BYTES = 10**13
"""Largest blob, as in a receipt: 10 TB."""

MIN_LEAF_BYTES = 64
"""Below, a leaf is hardly longer than its hash."""

MAX_LEAF_BYTES = 1 << 20
"""Above, nothing gets faster and proofs get long."""

_FIXED_BYTES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobHeader:
    """Everything a reader must know to find and check the bytes of a blob."""

    num_data: int
    """k, 1 <= k <= n."""
    num_shards: int
    """n, at most 64."""
    leaf_bytes: int
    """Size of a leaf of the shards' Merkle trees, a power of two."""
    size_bytes: int
    """Size of the blob before coding."""
    shard_roots: tuple[ShardRoot, ...]
    """One root a shard, in seat order."""
    folds: tuple[bytes, ...] = ()
    """The folds of the k data shards, T bytes each; empty in a header of version 1."""

    def with_folds(self, folds: tuple[bytes, ...]) -> BlobHeader:
        """Return the same header with ``folds``."""
        return replace(self, folds=folds)


@dataclass(frozen=True, slots=True, kw_only=True)
class StripeSpan:
    """Where one stripe lies in the blob and in each shard; half-open."""

    start: int
    """First byte in the blob."""
    stop: int
    """First byte after it in the blob."""
    piece_start: int
    """First byte in each shard."""
    piece_bytes: int
    """Bytes of the stripe in each shard, ceil((stop - start) / k)."""


def compute_blob_id(header: BlobHeader) -> BlobId:
    """Return the name of the blob: the tagged hash of its encoded header."""
    return BlobId(compute_hash(Tag.BLOB, encode_header(header)))


def compute_shard_bytes(size_bytes: int, num_data: int) -> int:
    """Return the length of every shard of a blob.

    >>> compute_shard_bytes(10, 4), compute_shard_bytes(0, 4), compute_shard_bytes(1, 2)
    (3, 0, 1)
    """
    num_full, rest = divmod(size_bytes, STRIPE_BYTES)
    return num_full * -(-STRIPE_BYTES // num_data) + -(-rest // num_data)


def iterate_stripes(size_bytes: int, num_data: int) -> Iterator[StripeSpan]:
    """Yield the stripes of a blob in order; none for an empty blob."""
    piece_start = 0
    for start in range(0, size_bytes, STRIPE_BYTES):
        stop = min(start + STRIPE_BYTES, size_bytes)
        piece_bytes = -(-(stop - start) // num_data)
        yield StripeSpan(start=start, stop=stop, piece_start=piece_start, piece_bytes=piece_bytes)
        piece_start += piece_bytes


def compute_used_bytes(span: StripeSpan, piece_index: int) -> int:
    """Return how many bytes of a data piece are the blob's; the rest is padding."""
    return max(0, min(span.piece_bytes, span.stop - span.start - piece_index * span.piece_bytes))


def encode_header(header: BlobHeader) -> bytes:
    """Return the canonical bytes of ``header`` (layout above)."""
    return encode_commitment(header) + b"".join(header.folds)


def encode_commitment(header: BlobHeader) -> bytes:
    """Return the header's bytes up to the folds, which are drawn from them."""
    return _encode_commitment(header, FOLDED_VERSION if header.folds else PLAIN_VERSION)


def compute_fold_commitment(header: BlobHeader) -> bytes:
    """Return what the folds of a header without folds are to be drawn from."""
    return _encode_commitment(header, FOLDED_VERSION)


def needs_folds(size_bytes: int, num_data: int, num_shards: int) -> bool:
    """Tell whether a blob has folds: its shards are long enough, and some of them are parity."""
    return num_data < num_shards and compute_shard_bytes(size_bytes, num_data) >= MIN_FOLDED_SHARD_BYTES


def check_has_folds(header: BlobHeader) -> None:
    """Check that a node can verify the encoding of a shard before it signs.

    Raises:
        FoldsMissing: the shards are long and the header has no folds.
    """
    if not header.folds and needs_folds(header.size_bytes, header.num_data, header.num_shards):
        raise FoldsMissing(
            shard_bytes=compute_shard_bytes(header.size_bytes, header.num_data), maximum=MIN_FOLDED_SHARD_BYTES - 1
        )


def decode_header(data: bytes) -> BlobHeader:
    """Decode the canonical bytes of a header.

    Raises:
        MalformedHeader: anything that ``encode_header`` does not give for a valid header.
    """
    if len(data) < _FIXED_BYTES:
        raise MalformedHeader(f"{len(data)} bytes, expected at least {_FIXED_BYTES}")
    version, matrix_id, num_data, num_shards = data[:4]
    if version not in (PLAIN_VERSION, FOLDED_VERSION):
        raise MalformedHeader(f"version {version}, expected {PLAIN_VERSION} or {FOLDED_VERSION}")
    if matrix_id != MATRIX_ID:
        raise MalformedHeader(f"matrix {matrix_id}, expected {MATRIX_ID}")
    if not 1 <= num_data <= num_shards <= MAX_SEATS:
        raise MalformedHeader(f"k {num_data}, n {num_shards}; expected 1 <= k <= n <= {MAX_SEATS}")
    roots_end = _FIXED_BYTES + num_shards * HASH_BYTES
    num_folds = compute_num_folds(num_shards) if version == FOLDED_VERSION else 0
    if len(data) != roots_end + num_data * num_folds:
        raise MalformedHeader(f"{len(data)} bytes, expected {roots_end + num_data * num_folds}")
    leaf_bytes = int.from_bytes(data[4:8], "big")
    if not MIN_LEAF_BYTES <= leaf_bytes <= MAX_LEAF_BYTES or leaf_bytes & (leaf_bytes - 1):
        raise MalformedHeader(
            f"leaves of {leaf_bytes} bytes, expected a power of two, {MIN_LEAF_BYTES} to {MAX_LEAF_BYTES}"
        )
    size_bytes = int.from_bytes(data[8:16], "big")
    if size_bytes > MAX_BLOB_BYTES:
        raise MalformedHeader(f"blob of {size_bytes} bytes, at most {MAX_BLOB_BYTES}")
    return BlobHeader(
        num_data=num_data,
        num_shards=num_shards,
        leaf_bytes=leaf_bytes,
        size_bytes=size_bytes,
        shard_roots=tuple(ShardRoot(data[at : at + HASH_BYTES]) for at in range(_FIXED_BYTES, roots_end, HASH_BYTES)),
        folds=tuple(data[at : at + num_folds] for at in range(roots_end, len(data), num_folds)) if num_folds else (),
    )


def _encode_commitment(header: BlobHeader, version: int) -> bytes:
    return b"".join(
        (
            bytes((version, MATRIX_ID, header.num_data, header.num_shards)),
            header.leaf_bytes.to_bytes(4, "big"),
            header.size_bytes.to_bytes(8, "big"),
            *header.shard_roots,
        )
    )
