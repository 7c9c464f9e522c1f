"""Byte layouts of what a node keeps beside a shard: the terms file and the index record (SPEC.md 2).

Big-endian integers throughout.  Terms file:

    offset  bytes  field
         0      8  magic "ARCHTERM"
         8      1  version, 1
         9      1  tier
        10      2  shard index
        12      8  epoch
        20      8  expiry
        28      8  shard bytes
        36      4  header length H
        40      H  da's encoded blob header
      40+H      4  CRC-32 of everything before

Index record: tier 1, epoch 8, expiry 8, release 8, due 8, shard bytes 8.
The file is what survives when the index is lost; the content is checked against the header's root.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

from da.core.types import BlobId, Epoch, Height, ShardIndex, Tier
from storage.core.errors import MalformedRecord

MAGIC = b"ARCHTERM"
VERSION = 1
_FIXED = struct.Struct(">8sBBHQQQI")
_CRC = struct.Struct(">I")
_RECORD = struct.Struct(">BQQQQQ")
_KEY = struct.Struct(">32sH")
_DUE = struct.Struct(">Q32sH")

MAX_HEADER_BYTES = 16 * 1024
"""Bytes; a header has 64 roots of 32 bytes at most, and some fields."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardTerms:
    """What a node promised about one shard, with what proves its content."""

    shard: ShardIndex
    tier: Tier
    epoch: Epoch
    """The latest epoch that it was signed for."""
    expiry: Height
    """The longest expiry that was signed."""
    shard_bytes: int
    """Length of the shard's file."""
    header: bytes
    """da's encoded header: the blob id is its hash, the shard's root is in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardRecord:
    """One shard in the index."""

    tier: Tier
    epoch: Epoch
    expiry: Height
    release: Height
    """What the chain said last; 0: it was not asked, or doesn't know the blob."""
    due: Height
    """Height at which the collector looks at it next."""
    shard_bytes: int


def encode_terms(terms: ShardTerms) -> bytes:
    """Return the bytes of a terms file."""
    body = (
        _FIXED.pack(
            MAGIC,
            VERSION,
            terms.tier,
            terms.shard,
            terms.epoch,
            terms.expiry,
            terms.shard_bytes,
            len(terms.header),
        )
        + terms.header
    )
    return body + _CRC.pack(zlib.crc32(body))


def decode_terms(data: bytes) -> ShardTerms:
    """Return the terms in a file's bytes.

    Raises: MalformedRecord when length, magic, version or checksum differ.
    """
    if len(data) < _FIXED.size + _CRC.size:
        raise MalformedRecord(f"terms of {len(data)} bytes, expected at least {_FIXED.size + _CRC.size}")
    magic, version, tier, shard, epoch, expiry, shard_bytes, header_bytes = _FIXED.unpack_from(data)
    if magic != MAGIC or version != VERSION:
        raise MalformedRecord(f"terms start with {magic!r} version {version}, expected {MAGIC!r} version {VERSION}")
    if header_bytes > MAX_HEADER_BYTES or len(data) != _FIXED.size + header_bytes + _CRC.size:
        raise MalformedRecord(f"terms of {len(data)} bytes with a header of {header_bytes}")
    (checksum,) = _CRC.unpack_from(data, len(data) - _CRC.size)
    got = zlib.crc32(data[: -_CRC.size])
    if checksum != got:
        raise MalformedRecord(f"terms with checksum {got:08x}, expected {checksum:08x}")
    if tier not in tuple(Tier):
        raise MalformedRecord(f"terms with tier {tier}, expected one of {[int(value) for value in Tier]}")
    return ShardTerms(
        shard=ShardIndex(shard),
        tier=Tier(tier),
        epoch=Epoch(epoch),
        expiry=Height(expiry),
        shard_bytes=shard_bytes,
        header=data[_FIXED.size : -_CRC.size],
    )


def encode_record(record: ShardRecord) -> bytes:
    """Return the index's value."""
    return _RECORD.pack(record.tier, record.epoch, record.expiry, record.release, record.due, record.shard_bytes)


def decode_record(data: bytes) -> ShardRecord:
    """Return the record in the index's value.

    Raises: MalformedRecord for another length.
    """
    if len(data) != _RECORD.size:
        raise MalformedRecord(f"index record of {len(data)} bytes, expected {_RECORD.size}")
    tier, epoch, expiry, release, due, shard_bytes = _RECORD.unpack(data)
    if tier not in tuple(Tier):
        raise MalformedRecord(f"index record with tier {tier}, expected one of {[int(value) for value in Tier]}")
    return ShardRecord(
        tier=Tier(tier),
        epoch=Epoch(epoch),
        expiry=Height(expiry),
        release=Height(release),
        due=Height(due),
        shard_bytes=shard_bytes,
    )


def encode_key(blob: BlobId, shard: ShardIndex) -> bytes:
    """Return a shard's key: blob id, shard index; a blob's shards lie together."""
    return _KEY.pack(blob, shard)


def decode_key(data: bytes) -> tuple[BlobId, ShardIndex]:
    """Return blob and shard of a key.

    Raises: MalformedRecord for another length.
    """
    if len(data) != _KEY.size:
        raise MalformedRecord(f"index key of {len(data)} bytes, expected {_KEY.size}")
    blob, shard = _KEY.unpack(data)
    return BlobId(blob), ShardIndex(shard)


def encode_due_key(due: Height, blob: BlobId, shard: ShardIndex) -> bytes:
    """Return the key in the order of due heights."""
    return _DUE.pack(due, blob, shard)


def decode_due_key(data: bytes) -> tuple[Height, BlobId, ShardIndex]:
    """Return due height, blob and shard of a key.

    Raises: MalformedRecord for another length.
    """
    if len(data) != _DUE.size:
        raise MalformedRecord(f"due key of {len(data)} bytes, expected {_DUE.size}")
    due, blob, shard = _DUE.unpack(data)
    return Height(due), BlobId(blob), ShardIndex(shard)
