"""Archives: bytes as the difference to earlier bytes, by planes, compressed (DA.md, *Tiers and price*; SPEC.md 10).

Dense checkpoints don't deduplicate, but each is close to the one before: XOR with that one leaves mostly zeros in the
high bytes of each number; byte planes put these side by side; zstd takes them out. An archive is a header and blocks::

    offset  bytes  field
         0      8  magic "ARCHDELT"
         8      1  version, 1
         9      1  width in bytes of a number: 1, 2, 4 or 8
        10      1  depth: 0 whole, d: the base has depth d - 1; at most 4
        11      1  0
        12     32  blob id of the base's archive, zeros at depth 0
        44      8  bytes of the contents
        52     32  BLAKE3 of the contents
        84      4  bytes of a block before compression
        88         blocks, each u32 length, then a zstd frame

Invariant: an archive gives exactly the bytes whose digest it names, or MalformedArchive.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from da.core.hashing import HASH_BYTES
from storage.core.errors import MalformedArchive

MAGIC = b"ARCHDELT"
VERSION = 1
HEADER_BYTES = 88
MAX_DEPTH = 4
"""Deltas in a row: a restore reads at most five archives."""

BLOCK_BYTES = 8 * 1024 * 1024
"""Bytes that are planed and compressed at once: what a restore holds of each archive of a chain."""

MAX_BLOCK_BYTES = 64 * 1024 * 1024
"""Larger blocks are refused: a header must not make a reader take memory."""

WIDTHS = (1, 2, 4, 8)
"""Bytes of a number."""

NO_BASE = bytes(HASH_BYTES)
"""Base of a whole archive."""

LENGTH = struct.Struct(">I")
_HEADER = struct.Struct(">8sBBBB32sQ32sI")


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveHeader:
    """What stands before the blocks."""

    width: int
    """Bytes of a number, one of WIDTHS."""
    depth: int
    """Archives below, 0 .. 4."""
    base: bytes
    """Blob id of the archive below, 32 bytes; NO_BASE at depth 0."""
    size_bytes: int
    """Of the contents."""
    digest: bytes
    """Of the contents, BLAKE3."""
    block_bytes: int = BLOCK_BYTES
    """Of every block but the last, before compression; a multiple of the width."""

    def count_blocks(self) -> int:
        """Return the number of blocks."""
        return -(-self.size_bytes // self.block_bytes)


def encode_archive_header(header: ArchiveHeader) -> bytes:
    """Return the 88 bytes before the blocks."""
    return _HEADER.pack(
        MAGIC,
        VERSION,
        header.width,
        header.depth,
        0,
        header.base,
        header.size_bytes,
        header.digest,
        header.block_bytes,
    )


def decode_archive_header(data: bytes) -> ArchiveHeader:
    """Return the header in the first 88 bytes.

    Raises: MalformedArchive.
    """
    if len(data) < HEADER_BYTES or data[:8] != MAGIC:
        raise MalformedArchive(f"{len(data)} bytes that start with {data[:8]!r}, expected {MAGIC!r} and more")
    _, version, width, depth, zero, base, size_bytes, digest, block_bytes = _HEADER.unpack_from(data)
    if version != VERSION or zero != 0 or width not in WIDTHS or depth > MAX_DEPTH:
        raise MalformedArchive(f"version {version}, width {width}, depth {depth}")
    if not 1 <= block_bytes <= MAX_BLOCK_BYTES or block_bytes % width:
        raise MalformedArchive(f"blocks of {block_bytes} bytes, expected 1 to {MAX_BLOCK_BYTES}, a multiple of {width}")
    if (depth == 0) != (base == NO_BASE):
        raise MalformedArchive(f"depth {depth} with base {base.hex()}")
    return ArchiveHeader(
        width=width, depth=depth, base=base, size_bytes=size_bytes, digest=digest, block_bytes=block_bytes
    )


def plan_base(depth_of_last: int | None) -> int:
    """Return the depth of the next archive: whole when there is none before, or the chain is full.

    >>> plan_base(None), plan_base(0), plan_base(3), plan_base(4)
    (0, 1, 4, 0)
    """
    return 0 if depth_of_last is None or depth_of_last >= MAX_DEPTH else depth_of_last + 1
