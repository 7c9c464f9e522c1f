"""Byte layout of an append segment, and when a segment is worth cleaning (SPEC.md 9).

A segment is records one after the other, big-endian::

    offset  bytes  field
         0      8  magic "ARCHSEGM"
         8      1  version, 1
         9      1  kind: 1 shard, 2 tombstone (no body)
        10     32  blob id
        42      2  shard index
        44      8  body bytes B
        52      4  CRC-32 of bytes 0..51
        56      B  the shard

The body has no checksum of its own: its Merkle root is in the blob's header. A later record of the same shard replaces
an earlier one. Reading stops at the first record that is cut or damaged: that is where a process died.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from enum import IntEnum

from da.core.types import BlobId, ShardIndex
from storage.core.errors import MalformedRecord

MAGIC = b"ARCHSEGM"
VERSION = 1
_BODY = struct.Struct(">8sBB32sHQ")
_CRC = struct.Struct(">I")

PREFIX_BYTES = _BODY.size + _CRC.size
"""Bytes of a record before its body: 56."""

SEGMENT_BYTES = 256 * 1024 * 1024
"""A segment that has reached this takes no more records."""


class Kind(IntEnum):
    """What a record says."""

    SHARD = 1
    TOMBSTONE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentRecord:
    """What stands before a body."""

    kind: Kind
    blob: BlobId
    shard: ShardIndex
    body_bytes: int
    """Bytes of the shard, 0 for a tombstone."""


def encode_prefix(record: SegmentRecord) -> bytes:
    """Return the 56 bytes before a body."""
    body = _BODY.pack(MAGIC, VERSION, record.kind, record.blob, record.shard, record.body_bytes)
    return body + _CRC.pack(zlib.crc32(body))


def decode_prefix(data: bytes) -> SegmentRecord:
    """Return what stands before a body.

    Raises: MalformedRecord when length, magic, version, kind or checksum differ.
    """
    if len(data) != PREFIX_BYTES:
        raise MalformedRecord(f"segment record of {len(data)} bytes, expected {PREFIX_BYTES}")
    magic, version, kind, blob, shard, body_bytes = _BODY.unpack_from(data)
    (checksum,) = _CRC.unpack_from(data, _BODY.size)
    got = zlib.crc32(data[: _BODY.size])
    if checksum != got or magic != MAGIC or version != VERSION or kind not in tuple(Kind):
        raise MalformedRecord(f"segment record with checksum {got:08x}, expected {checksum:08x}")
    return SegmentRecord(kind=Kind(kind), blob=BlobId(blob), shard=ShardIndex(shard), body_bytes=body_bytes)


def is_worth_cleaning(live_bytes: int, total_bytes: int) -> bool:
    """Tell whether a full segment should be copied together: more than half of it is dead."""
    return 2 * live_bytes < total_bytes
