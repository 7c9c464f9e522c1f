"""Many small blobs at once: one call and one signature a seat (da/SPEC.md, *Batches*).

Coding is byte by byte, so the pieces of all blobs are coded in one go. Body of a batch, big-endian::

    offset 0  u32  number of blobs, 1 .. 4096
    for each:
           0  u16  length of the blob header
           2       blob header
                   the seat's shard, as long as the header says
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from da.codec import add_folds
from da.core.blob import (
    BlobHeader,
    compute_blob_id,
    compute_shard_bytes,
    decode_header,
    encode_header,
    needs_folds,
)
from da.core.errors import BlobTooLarge, MalformedMessage
from da.core.matrix import compute_parity_rows
from da.core.merkle import compute_root
from da.core.receipt import MAX_BATCH_BLOBS
from da.core.types import BlobId, Scheme
from da.kernel import Kernel, get_kernel
from da.memory import allocate

MAX_SMALL_BLOB_BYTES = 64 * 1024
"""Larger blobs go alone: their own call costs little beside their bytes."""

MAX_BATCH_BYTES = 16 * 2**20
"""Of a batch's body at one seat."""


CLIENT_BATCH_BLOBS = 512
"""What our client puts into a batch: a signature and a sync cost little a blob, and paths are nine hashes long."""

CLIENT_BATCH_BYTES = 4 * 2**20
"""Blob bytes that it puts into one: with copies, all of them go to each seat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallBlob:
    """One blob of a batch, coded."""

    blob: BlobId
    header: BlobHeader
    encoded_header: bytes
    shards: tuple[memoryview, ...]
    """By seat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchEntry:
    """One blob of a batch, as a seat gets it."""

    blob: BlobId
    header: BlobHeader
    encoded_header: bytes
    """As it came."""
    shard: memoryview
    """The seat's."""


def encode_small_blobs(
    blobs: Sequence[bytes], scheme: Scheme, *, leaf_bytes: int, kernel: Kernel | None = None
) -> list[SmallBlob]:
    """Code and hash blobs of at most 64 KiB each.

    Raises:
        BlobTooLarge: one is larger.
    """
    num_data, num_shards = scheme.num_data, scheme.num_shards
    kernel = kernel or get_kernel()
    lengths = []
    columns: list[list[bytes]] = [[] for _ in range(num_data)]
    for data in blobs:
        if len(data) > MAX_SMALL_BLOB_BYTES:
            raise BlobTooLarge(limit_bytes=MAX_SMALL_BLOB_BYTES, got_bytes=len(data))
        piece_bytes = -(-len(data) // num_data)
        padded = bytes(data).ljust(num_data * piece_bytes, b"\0")
        for index, column in enumerate(columns):
            column.append(padded[index * piece_bytes : (index + 1) * piece_bytes])
        lengths.append(piece_bytes)
    data_rows = [memoryview(b"".join(column)) for column in columns]
    parity = [allocate(sum(lengths)) for _ in range(num_shards - num_data)]
    kernel.multiply(compute_parity_rows(num_data, num_shards), data_rows, parity)
    rows, at = (*data_rows, *parity), 0
    coded = []
    for data, piece_bytes in zip(blobs, lengths, strict=True):
        shards = tuple(row[at : at + piece_bytes] for row in rows)
        at += piece_bytes
        header = BlobHeader(
            num_data=num_data,
            num_shards=num_shards,
            leaf_bytes=leaf_bytes,
            size_bytes=len(data),
            shard_roots=tuple(compute_root(shard, leaf_bytes=leaf_bytes) for shard in shards),
        )
        if needs_folds(len(data), num_data, num_shards):
            header = add_folds(header, [(shard,) for shard in shards[:num_data]], kernel=kernel)
        coded.append(
            SmallBlob(blob=compute_blob_id(header), header=header, encoded_header=encode_header(header), shards=shards)
        )
    return coded


def split_batches(blobs: Sequence[bytes]) -> list[list[bytes]]:
    """Cut ``blobs`` into batches, in order."""
    batches: list[list[bytes]] = []
    num_bytes = 0
    for data in blobs:
        if not batches or len(batches[-1]) == CLIENT_BATCH_BLOBS or num_bytes + len(data) > CLIENT_BATCH_BYTES:
            batches.append([])
            num_bytes = 0
        batches[-1].append(data)
        num_bytes += len(data)
    return batches


def encode_batch(blobs: Sequence[SmallBlob], seat: int) -> bytes:
    """Return the body of a batch for ``seat`` (layout above)."""
    parts: list[bytes | memoryview] = [len(blobs).to_bytes(4, "big")]
    for small in blobs:
        parts += (len(small.encoded_header).to_bytes(2, "big"), small.encoded_header, small.shards[seat])
    return b"".join(parts)


def decode_batch(body: bytes | bytearray | memoryview) -> list[BatchEntry]:
    """Decode the body of a batch; total.

    Raises:
        MalformedMessage, MalformedHeader: anything that ``encode_batch`` does not give.
    """
    view = memoryview(body)
    num_blobs = int.from_bytes(view[:4], "big")
    if len(view) < 4 or not 1 <= num_blobs <= MAX_BATCH_BLOBS:
        raise MalformedMessage(f"batch of {num_blobs} blobs in {len(view)} bytes, expected 1 to {MAX_BATCH_BLOBS}")
    at, entries = 4, []
    for index in range(num_blobs):
        header_at = at + 2
        shard_at = header_at + int.from_bytes(view[at:header_at], "big")
        if shard_at > len(view):
            raise MalformedMessage(f"batch ends in the header of blob {index}")
        encoded = bytes(view[header_at:shard_at])
        header = decode_header(encoded)
        if header.size_bytes > MAX_SMALL_BLOB_BYTES:
            raise MalformedMessage(
                f"blob {index} has {header.size_bytes} bytes, at most {MAX_SMALL_BLOB_BYTES} in a batch"
            )
        at = shard_at + compute_shard_bytes(header.size_bytes, header.num_data)
        if at > len(view):
            raise MalformedMessage(f"batch ends in the shard of blob {index}")
        entries.append(
            BatchEntry(blob=compute_blob_id(header), header=header, encoded_header=encoded, shard=view[shard_at:at])
        )
    if at != len(view):
        raise MalformedMessage(f"{len(view) - at} bytes after the last blob of a batch")
    if len({entry.blob for entry in entries}) != num_blobs:
        raise MalformedMessage("a blob stands twice in a batch; send it once")
    return entries
