"""Files to archives and back, block by block in constant memory (core/delta.py).

A chain is the archives from the whole one to the wanted one; a block of the contents needs the same block of each.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import BinaryIO

import blake3

from storage.core.delta import (
    BLOCK_BYTES,
    HEADER_BYTES,
    LENGTH,
    NO_BASE,
    ArchiveHeader,
    decode_archive_header,
    encode_archive_header,
)
from storage.core.errors import MalformedArchive
from storage.planes import BlockCoder, add_base

READ_BYTES = 4 << 20
"""Read at once while a file is hashed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Open archives that build on one another, the whole one first."""

    files: tuple[BinaryIO, ...]
    """Seekable; each starts at its header."""
    blob: bytes
    """Blob id of the last one: the base of the next."""
    depth: int
    """Of the last one."""


def write_archive(source: BinaryIO, target: BinaryIO, *, width: int, base: Chain | None = None) -> ArchiveHeader:
    """Write ``source`` as an archive, as the difference to the contents of ``base`` where there is one.

    Raises: MalformedArchive when the base is broken.
    """
    size_bytes, digest = _measure(source)
    header = ArchiveHeader(
        width=width,
        depth=0 if base is None else base.depth + 1,
        base=NO_BASE if base is None else base.blob,
        size_bytes=size_bytes,
        digest=digest,
    )
    target.write(encode_archive_header(header))
    coder = BlockCoder(width)
    below: Iterator[bytes | memoryview] = iter(()) if base is None else iterate_blocks(base.files, is_checked=False)
    source.seek(0)
    for _ in range(header.count_blocks()):
        frame = coder.encode(source.read(BLOCK_BYTES), next(below, b""))
        target.write(LENGTH.pack(len(frame)) + frame)
    return header


def read_archive(files: Sequence[BinaryIO], target: BinaryIO) -> ArchiveHeader:
    """Write the contents of the last of ``files`` to ``target``; the others are its bases, the whole one first.

    Raises: MalformedArchive, also when the contents have another digest; what was written is then worth nothing.
    """
    for block in iterate_blocks(files):
        target.write(block)
    files[-1].seek(0)
    return decode_archive_header(_read_exactly(files[-1], HEADER_BYTES))


def iterate_blocks(files: Sequence[BinaryIO], *, is_checked: bool = True) -> Iterator[memoryview]:
    """Yield the contents of the last of ``files`` block by block; the archives of a chain are unpacked abreast.

    Raises: MalformedArchive, after the last block when the digest differs.
    """
    headers, coders = [], []
    for index, file in enumerate(files):
        file.seek(0)
        header = decode_archive_header(_read_exactly(file, HEADER_BYTES))
        if header.depth != index:
            raise MalformedArchive(f"archive {index} of a chain has depth {header.depth}")
        headers.append(header)
        coders.append(BlockCoder(header.width))
    if len({header.block_bytes for header in headers}) != 1:
        raise MalformedArchive(f"blocks of {[header.block_bytes for header in headers]} bytes in one chain")
    hasher = blake3.blake3()
    last = headers[-1]
    with ThreadPoolExecutor(min(len(files), os.cpu_count() or 1), thread_name_prefix="archive") as threads:
        for number in range(last.count_blocks()):
            parts = [
                None if number >= header.count_blocks() else _read_frame(file, header, number)
                for header, file in zip(headers, files, strict=True)
            ]
            block = memoryview(b"")
            for part in threads.map(_unpack, coders, parts):
                if part is not None:
                    add_base(part, block)
                block = memoryview(b"") if part is None else part
            hasher.update(block)
            yield block
    got = hasher.digest()
    if is_checked and got != last.digest:
        raise MalformedArchive(f"contents with digest {got.hex()}, expected {last.digest.hex()}: is the base right?")


def read_header(file: BinaryIO) -> ArchiveHeader:
    """Return the header of an open archive.

    Raises: MalformedArchive.
    """
    file.seek(0)
    return decode_archive_header(file.read(HEADER_BYTES))


def is_archive(start: bytes) -> bool:
    """Tell whether bytes start like an archive."""
    try:
        decode_archive_header(start)
    except MalformedArchive:
        return False
    return True


def _read_frame(file: BinaryIO, header: ArchiveHeader, number: int) -> tuple[bytes, int]:
    """Return the next frame of an archive, that of block ``number``, and the bytes of the block."""
    (length,) = LENGTH.unpack(_read_exactly(file, LENGTH.size))
    if length > 2 * header.block_bytes + 1024:
        raise MalformedArchive(f"block {number} of {length} bytes")
    num_bytes = min(header.block_bytes, header.size_bytes - number * header.block_bytes)
    return _read_exactly(file, length), num_bytes


def _unpack(coder: BlockCoder, part: tuple[bytes, int] | None) -> memoryview | None:
    """Return the difference of a block to its base; None where an archive has no such block."""
    return None if part is None else coder.decode_difference(*part)


def _measure(source: BinaryIO) -> tuple[int, bytes]:
    hasher, size_bytes = blake3.blake3(), 0
    source.seek(0)
    while chunk := source.read(READ_BYTES):
        hasher.update(chunk)
        size_bytes += len(chunk)
    return size_bytes, hasher.digest()


def _read_exactly(file: BinaryIO, num_bytes: int) -> bytes:
    data = file.read(num_bytes)
    if len(data) != num_bytes:
        raise MalformedArchive(f"it ends {num_bytes - len(data)} bytes early")
    return data
