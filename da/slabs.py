"""A blob that is larger than memory, slab by slab (da/SPEC.md, *Client*).

A slab is the same range of columns of all pieces of one stripe. Slabs in order give every shard's bytes in order, so
coder, sender and reader hold a few slabs and nothing else. They are a matter of this side only, not of the format.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from da.core.blob import StripeSpan, iterate_stripes
from da.core.errors import NotAFile, SourceChanged
from da.input_file import open_input

SLAB_BYTES = 32 * 2**20
"""All n pieces of a slab together: a few of them are what a transfer of any size holds in memory."""

MAX_WIDTH_BYTES = 4 * 2**20
"""Of one piece of a slab; more makes nothing faster."""

MIN_WIDTH_BYTES = 64 * 1024
"""Of one piece: one leaf of bulk data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slab:
    """A range of columns of a stripe."""

    span: StripeSpan
    """The stripe."""
    start: int
    """First column in the stripe's pieces."""
    num_bytes: int
    """Number of columns: bytes of each piece."""

    @property
    def shard_start(self) -> int:
        """First byte in each shard."""
        return self.span.piece_start + self.start

    def get_blob_range(self, piece_index: int) -> tuple[int, int]:
        """Return where the bytes of data piece ``piece_index`` lie in the blob: start and number, without padding."""
        start = self.span.start + piece_index * self.span.piece_bytes + self.start
        return start, max(0, min(self.num_bytes, self.span.stop - start))


class Source(Protocol):
    """Bytes that can be read again and again."""

    @property
    def size_bytes(self) -> int:
        """How many there are."""
        ...

    def read_into(self, start: int, buffer: memoryview) -> None:
        """Fill ``buffer`` with the bytes from ``start`` on; any thread may call it."""
        ...


class FileSource:
    """A file, as long as it stays as it is; use as a context manager."""

    def __init__(self, path: Path) -> None:
        """Open it.

        Raises:
            NotAFile: a pipe or a device says nothing of its length, and a file that the kernel makes up says 0.
            OSError: it is missing, or can't be read.
        """
        self._path = path
        self._fd = open_input(path, next_step="name a file; of a folder make an archive first")
        try:
            found = os.fstat(self._fd)
            if not found.st_size and os.pread(self._fd, 1, 0):
                what = "has bytes and a length of 0"
                raise NotAFile(path=str(path), found=what, next_step="copy it, and send the copy")
        except (OSError, NotAFile):
            os.close(self._fd)
            raise
        self._mark = (found.st_size, found.st_mtime_ns)
        self.size_bytes = found.st_size

    def __enter__(self) -> FileSource:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def read_into(self, start: int, buffer: memoryview) -> None:
        """See ``Source``.

        Raises:
            SourceChanged: the file is not what it was when it was opened: shorter, longer or written to.
        """
        at = 0
        while at < len(buffer):
            got = os.preadv(self._fd, [buffer[at:]], start + at)
            if got == 0:
                raise SourceChanged(path=str(self._path), expected=self.size_bytes, got=start + at)
            at += got
        now = os.fstat(self._fd)
        if (now.st_size, now.st_mtime_ns) != self._mark:
            raise SourceChanged(path=str(self._path), expected=self.size_bytes, got=now.st_size)


class MemorySource:
    """Bytes in memory."""

    def __init__(self, data: bytes | bytearray | memoryview) -> None:
        self._view = memoryview(data).cast("B") if len(data) else memoryview(b"")
        self.size_bytes = len(self._view)

    def read_into(self, start: int, buffer: memoryview) -> None:
        """See ``Source``."""
        buffer[:] = self._view[start : start + len(buffer)]


def iterate_slabs(size_bytes: int, *, num_data: int, num_shards: int) -> Iterator[Slab]:
    """Yield the slabs of a blob in order."""
    width = compute_width(num_shards)
    for span in iterate_stripes(size_bytes, num_data):
        for start in range(0, span.piece_bytes, width):
            yield Slab(span=span, start=start, num_bytes=min(width, span.piece_bytes - start))


def compute_width(num_shards: int) -> int:
    """Return the bytes of one piece of a slab: a power of two, so that leaves and folds stay whole."""
    width = MAX_WIDTH_BYTES
    while width * num_shards > SLAB_BYTES and width > MIN_WIDTH_BYTES:
        width >>= 1
    return width


def read_slab(source: Source, slab: Slab, buffers: Sequence[memoryview]) -> None:
    """Fill the k ``buffers`` with the slab's data pieces, zeros where the blob has ended."""
    for index, buffer in enumerate(buffers):
        start, num_bytes = slab.get_blob_range(index)
        source.read_into(start, buffer[:num_bytes])
        if num_bytes < len(buffer):
            buffer[num_bytes:] = bytes(len(buffer) - num_bytes)
