"""Cold shards in append segments: one sequential write and one fdatasync a shard (DA.md: 1.4 to 2.3 GB/s).

    <directory>/<number>.seg      records, see core/segments.py

Where each shard lies is kept in memory and read from the segments at start. A deleted shard leaves a tombstone; a
segment that is more than half dead is copied together and removed. Invariant: a live shard is complete in the place
that the map names, and its segment is removed only after its copy is on the medium.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from da.core.types import BlobId, ShardIndex
from da.input_file import open_input
from da.landing import sync_directory
from storage.core.errors import MalformedRecord
from storage.core.segments import (
    PREFIX_BYTES,
    SEGMENT_BYTES,
    Kind,
    SegmentRecord,
    decode_prefix,
    encode_prefix,
    is_worth_cleaning,
)
from storage.node.room import refuse_when_full

log = logging.getLogger(__name__)

COPY_BYTES = 4 << 20
"""Bytes copied at once."""

Key = tuple[BlobId, ShardIndex]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Where a body lies."""

    number: int
    start: int
    body_bytes: int


@dataclass(slots=True, kw_only=True)
class _Segment:
    """One file."""

    path: Path
    num_bytes: int = 0
    live_bytes: int = 0
    """Of records that the map names, prefixes included."""
    tombstones: set[Key] = field(default_factory=set)


class SegmentReader:
    """A shard inside a segment; stays readable when its segment is removed meanwhile."""

    def __init__(self, path: Path, start: int, num_bytes: int) -> None:
        """Open the segment."""
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._start = start
        self._num_bytes = num_bytes

    def read(self, start: int, num_bytes: int) -> bytes:
        """See ``ShardReader``."""
        return os.pread(self._fd, max(0, min(num_bytes, self._num_bytes - start)), self._start + start)

    def close(self) -> None:
        """See ``ShardReader``."""
        os.close(self._fd)


class SegmentShelf:
    """See ``Shelf``."""

    def __init__(self, directory: Path, *, segment_bytes: int = SEGMENT_BYTES) -> None:
        """Open the segments of ``directory``; what was written last and is not whole is left out."""
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._lock = threading.RLock()
        self._places: dict[Key, _Place] = {}
        self._segments: dict[int, _Segment] = {}
        for number, path in sorted(_find_segments(directory)):
            self._scan(number, path)
        self._active: int | None = None
        """A former process's segments take no more records: the last one may end in half a record."""

    def put(self, blob: BlobId, shard: ShardIndex, body: Path) -> None:
        """See ``Shelf``."""
        with self._lock, body.open("rb") as source:
            num_bytes = os.fstat(source.fileno()).st_size
            with refuse_when_full(num_bytes):
                self._append(blob, shard, source.fileno(), 0, num_bytes)
            self._try_clean()

    def get_bytes(self, blob: BlobId, shard: ShardIndex) -> int | None:
        """See ``Shelf``."""
        with self._lock:
            place = self._places.get((blob, shard))
        return None if place is None else place.body_bytes

    def open(self, blob: BlobId, shard: ShardIndex) -> SegmentReader:
        """See ``Shelf``."""
        with self._lock:
            place = self._places.get((blob, shard))
            if place is None:
                raise FileNotFoundError(f"no shard {shard} of blob {blob.hex()} in {self._directory}")
            return SegmentReader(self._segments[place.number].path, place.start, place.body_bytes)

    def delete(self, blob: BlobId, shard: ShardIndex) -> None:
        """See ``Shelf``."""
        with self._lock:
            if (blob, shard) not in self._places:
                return
            tombstone = SegmentRecord(kind=Kind.TOMBSTONE, blob=blob, shard=shard, body_bytes=0)
            with refuse_when_full(PREFIX_BYTES):
                segment = self._get_active()
                self._write(segment, [encode_prefix(tombstone)])
            segment.tombstones.add((blob, shard))
            self._forget((blob, shard))
            self._try_clean()

    def iterate_keys(self) -> Iterator[Key]:
        """See ``Shelf``."""
        with self._lock:
            keys = list(self._places)
        yield from keys

    def get_disk_bytes(self) -> int:
        """Return the bytes of all segments, dead ones included."""
        with self._lock:
            return sum(segment.num_bytes for segment in self._segments.values())

    def _append(self, blob: BlobId, shard: ShardIndex, source: int, start: int, num_bytes: int) -> None:
        segment = self._get_active()
        assert self._active is not None
        prefix = encode_prefix(SegmentRecord(kind=Kind.SHARD, blob=blob, shard=shard, body_bytes=num_bytes))
        at = segment.num_bytes + PREFIX_BYTES
        self._write(segment, [prefix], _Source(source, start, num_bytes))
        self._forget((blob, shard))
        self._places[blob, shard] = _Place(number=self._active, start=at, body_bytes=num_bytes)
        segment.live_bytes += PREFIX_BYTES + num_bytes
        segment.tombstones.discard((blob, shard))

    def _write(self, segment: _Segment, pieces: list[bytes], source: _Source | None = None) -> None:
        """Append and sync; on any failure the segment ends where it ended before."""
        fd = os.open(segment.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        is_done = False
        try:
            at = segment.num_bytes
            for piece in pieces:
                at = _write_all(fd, piece, at)
            if source is not None:
                at = source.copy_to(fd, at)
            os.fdatasync(fd)
            segment.num_bytes = at
            is_done = True
        finally:
            if not is_done:
                os.ftruncate(fd, segment.num_bytes)
            os.close(fd)

    def _get_active(self) -> _Segment:
        if self._active is not None and self._segments[self._active].num_bytes < self._segment_bytes:
            return self._segments[self._active]
        number = 1 + max(self._segments, default=0)
        path = self._directory / f"{number:08d}.seg"
        path.touch(0o600)
        sync_directory(self._directory)
        self._segments[number], self._active = _Segment(path=path), number
        return self._segments[number]

    def _forget(self, key: Key) -> None:
        place = self._places.pop(key, None)
        if place is not None:
            self._segments[place.number].live_bytes -= PREFIX_BYTES + place.body_bytes

    def _try_clean(self) -> None:
        try:
            self._clean()
        except OSError as error:  # one segment that can't be read must not stop new shards
            log.warning("dead bytes in %s stay for now: %s", self._directory, error)

    def _clean(self) -> None:
        """Copy together what is more than half dead; the active segment is left alone."""
        for number, segment in sorted(self._segments.items()):
            if number == self._active or not is_worth_cleaning(segment.live_bytes, segment.num_bytes):
                continue
            fd = os.open(segment.path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                for key, place in [(key, place) for key, place in self._places.items() if place.number == number]:
                    self._append(*key, fd, place.start, place.body_bytes)
            finally:
                os.close(fd)
            has_older = any(other < number for other in self._segments)
            for blob, shard in sorted(segment.tombstones):
                if has_older and (blob, shard) not in self._places:
                    record = SegmentRecord(kind=Kind.TOMBSTONE, blob=blob, shard=shard, body_bytes=0)
                    active = self._get_active()
                    self._write(active, [encode_prefix(record)])
                    active.tombstones.add((blob, shard))
            segment.path.unlink()
            del self._segments[number]

    def _scan(self, number: int, path: Path) -> None:
        segment = _Segment(path=path, num_bytes=path.stat().st_size)
        self._segments[number] = segment
        with os.fdopen(open_input(path), "rb") as file:
            at = 0
            while at + PREFIX_BYTES <= segment.num_bytes:
                file.seek(at)
                try:
                    record = decode_prefix(file.read(PREFIX_BYTES))
                except MalformedRecord as error:
                    log.error("%s ends at byte %d of %d: %s", path, at, segment.num_bytes, error)
                    break
                key = (record.blob, record.shard)
                stop = at + PREFIX_BYTES + record.body_bytes
                if stop > segment.num_bytes:
                    log.warning("%s ends in the middle of shard %d of blob %s", path, record.shard, record.blob.hex())
                    break
                self._forget(key)
                if record.kind is Kind.TOMBSTONE:
                    segment.tombstones.add(key)
                else:
                    self._places[key] = _Place(number=number, start=at + PREFIX_BYTES, body_bytes=record.body_bytes)
                    segment.live_bytes += stop - at
                    segment.tombstones.discard(key)
                at = stop


@dataclass(frozen=True, slots=True)
class _Source:
    """A range of an open file."""

    fd: int
    start: int
    num_bytes: int

    def copy_to(self, fd: int, at: int) -> int:
        """Copy the range to ``at`` of another file and return where it ends there."""
        done = 0
        while done < self.num_bytes:
            chunk = os.pread(self.fd, min(COPY_BYTES, self.num_bytes - done), self.start + done)
            if not chunk:
                raise OSError(errno.EIO, f"the source ended after {done} of {self.num_bytes} bytes")
            at = _write_all(fd, chunk, at)
            done += len(chunk)
        return at


def _find_segments(directory: Path) -> Iterator[tuple[int, Path]]:
    """Yield the segments of a folder; a file of another name, such as a copy, is none of ours."""
    for path in directory.glob("*.seg"):
        if path.stem.isascii() and path.stem.isdigit():
            yield int(path.stem), path
        else:
            log.warning("%s is no segment: expected a number for its name; it is left alone", path)


def _write_all(fd: int, data: bytes, at: int) -> int:
    """Write ``data`` at ``at`` and return where it ends; a nearly full disk takes it in parts."""
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, at)
        view, at = view[written:], at + written
    return at
