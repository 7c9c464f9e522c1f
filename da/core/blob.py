"""What a blob is called and how it is cut (DESIGN 5; da/SPEC.md, *Blobs*).

A blob is cut into stripes of 64 MiB, a stripe into k equal pieces (the last padded with zeros), and the code adds
n - k more. Shard i is the concatenation of piece i of all stripes. The header binds code, size and shard roots; its
hash is the blob id. Invariant: a blob id names one byte string or none.

Header, canonical, big-endian::

    offset  0  u8        version, 1
            1  u8        matrix id, 1
            2  u8        k, number of data shards
            3  u8        n, number of shards, k..64
            4  u32       bytes of a Merkle leaf, a power of two, 64 .. 2^20
            8  u64       size of the blob in bytes, 0 .. 10^13
           16  n x 32    shard roots, by seat
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from da.core.errors import MalformedHeader
from da.core.hashing import HASH_BYTES, Tag, compute_hash
from da.core.scheme import MAX_SEATS
from da.core.types import BlobId, ShardRoot

HEADER_VERSION = 1
"""The only header format so far."""

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


def encode_header(header: BlobHeader) -> bytes:
    """Return the canonical bytes of ``header`` (layout above)."""
    return b"".join(
        (
            bytes((HEADER_VERSION, MATRIX_ID, header.num_data, header.num_shards)),
            header.leaf_bytes.to_bytes(4, "big"),
            header.size_bytes.to_bytes(8, "big"),
            *header.shard_roots,
        )
    )


def decode_header(data: bytes) -> BlobHeader:
    """Decode the canonical bytes of a header.

    Raises:
        MalformedHeader: anything that ``encode_header`` does not give for a valid header.
    """
    if len(data) < _FIXED_BYTES:
        raise MalformedHeader(f"{len(data)} bytes, expected at least {_FIXED_BYTES}")
    version, matrix_id, num_data, num_shards = data[:4]
    if version != HEADER_VERSION:
        raise MalformedHeader(f"version {version}, expected {HEADER_VERSION}")
    if matrix_id != MATRIX_ID:
        raise MalformedHeader(f"matrix {matrix_id}, expected {MATRIX_ID}")
    if not 1 <= num_data <= num_shards <= MAX_SEATS:
        raise MalformedHeader(f"k {num_data}, n {num_shards}; expected 1 <= k <= n <= {MAX_SEATS}")
    if len(data) != _FIXED_BYTES + num_shards * HASH_BYTES:
        raise MalformedHeader(f"{len(data)} bytes, expected {_FIXED_BYTES + num_shards * HASH_BYTES}")
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
        shard_roots=tuple(ShardRoot(data[at : at + HASH_BYTES]) for at in range(_FIXED_BYTES, len(data), HASH_BYTES)),
    )
