"""Shards as files: staging, sync, rename, delete (SPEC.md 2).

    <home>/staging/<random>.part                  bytes on their way in; removed at start
    <home>/shards/<2 hex>/<blob hex>.<i>.terms    what was promised, see core/records.py
    <home>/shards/<2 hex>/<blob hex>.<i>.shard    the bytes, or a link to them on a memory file system, see ram.py
    <home>/small/{synced,written}/                small shards that came in batches, see small.py
    <home>/segments/                              bytes of cold shards, where no bucket has them (shelf.py)
    <home>/quarantine/                            files that are not what they say; for a person to look at

Invariant: a ``.shard`` file under its name has passed its root check and has its terms beside it, because the
terms are renamed first and deleted last.
"""

from __future__ import annotations

import errno
import logging
import os
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from da.core.types import BlobId, ShardIndex, Tier
from da.landing import sync_directory
from storage.core.errors import DiskFailed, DiskFull, MalformedRecord
from storage.core.records import ShardTerms, decode_terms, encode_terms
from storage.node.body import FileReader, MemoryReader, ShardReader
from storage.node.ram import RamFolder, find_target
from storage.node.room import refuse_when_full
from storage.node.segments import SegmentShelf
from storage.node.shelf import Shelf
from storage.node.small import SmallShards

log = logging.getLogger(__name__)

COPY_BYTES = 4 << 20
"""Copied at once when a shard changes its medium."""

KEPT_QUARANTINED = 32
"""The newest files in quarantine; a failing medium must not fill it with what repair has brought back since."""

AHEAD_BYTES = 2 << 20
"""Room on the file system that a synced body has before its bytes are there: blocks are found for many pages at once,
which is a third of what writing costs; more would be counted twice, as free room that is gone and as reserved."""

MAX_TERMS_BYTES = 64 * 1024
"""Bytes of a terms file that are read at most; valid ones stay below."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundShard:
    """One name found in the shards directory."""

    blob: BlobId
    shard: ShardIndex
    body_bytes: int | None
    """Size of the ``.shard`` file, None where there is none."""
    has_terms: bool


class StagingFile:
    """Bytes on their way in: ``write`` any number of times, then ``Disk.publish`` or ``discard``."""

    def __init__(self, path: Path, *, synced_bytes: int = 0, release: Callable[[], None] = lambda: None) -> None:
        """Create the file; so many bytes of it will be synced. ``release`` gives back what was set aside for it.

        Raises: DiskFull when the filesystem has no room for a name.
        """
        self.path = path
        self._release: Callable[[], None] | None = release
        self._synced_bytes = synced_bytes
        self._allocated_bytes = 0
        with refuse_when_full():
            self._fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        self.num_bytes = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append all of ``data``.

        Raises: DiskFull when the filesystem has no room.
        """
        view = memoryview(data)
        with refuse_when_full(len(data)):
            if self._allocated_bytes < min(self.num_bytes + len(data), self._synced_bytes):
                self._allocate(self.num_bytes + len(data) + AHEAD_BYTES)
            while view:
                view = view[os.write(self._fd, view) :]
        self.num_bytes += len(data)

    def _allocate(self, stop: int) -> None:
        start, stop = self._allocated_bytes, min(stop, self._synced_bytes)
        try:
            os.posix_fallocate(self._fd, start, stop - start)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                raise
            stop = self._synced_bytes  # not on this file system: not asked again
        self._allocated_bytes = stop

    def sync(self) -> None:
        """Put the bytes on the medium (fdatasync).

        Raises: DiskFull when delayed allocation finds no room now.
        """
        with refuse_when_full(self.num_bytes):
            os.fdatasync(self._fd)

    def close(self) -> None:
        """Close the descriptor; the file stays."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def discard(self) -> None:
        """Close and remove the file, if it's still there."""
        self.close()
        self.path.unlink(missing_ok=True)
        if self._release is not None:
            self._release()
            self._release = None


class Disk:
    """The directories of one home."""

    def __init__(self, home: Path, *, shelf: Shelf | None = None, ram: RamFolder | None = None) -> None:
        """Make the directories where they are missing; cold shards lie on ``shelf``, by default in segments."""
        self.home = home
        self._ram = ram
        self.shelf: Shelf = shelf if shelf is not None else SegmentShelf(home / "segments")
        self._staging = home / "staging"
        self._shards = home / "shards"
        self._quarantine = home / "quarantine"
        self.small = SmallShards(home / "small")
        for directory in (self._staging, self._shards, self._quarantine):
            directory.mkdir(parents=True, exist_ok=True)

    def close(self) -> None:
        """Close the database of small shards."""
        self.small.close()

    def get_free_bytes(self) -> int:
        """Return what the filesystem has free for us."""
        stats = os.statvfs(self.home)
        return stats.f_bavail * stats.f_frsize

    def get_memory_status(self) -> dict[str, int | str | bool] | None:
        """Return how the memory file system is, None where the node uses none."""
        return None if self._ram is None else self._ram.get_status()

    def create_staging(self, *, synced_bytes: int = 0) -> StagingFile:
        """Return a new file in the staging directory; so many bytes of it will be synced."""
        return StagingFile(self._name_staging(), synced_bytes=synced_bytes)

    def _name_staging(self) -> Path:
        return self._staging / f"{secrets.token_hex(16)}.part"

    def create_temporary_staging(self, num_bytes: int) -> StagingFile:
        """Return a new file for a body that nobody syncs: in memory, where there is room for it."""
        reserved = self._ram.reserve(num_bytes) if self._ram is not None else None
        if reserved is None:
            return self.create_staging()
        path, release = reserved
        try:
            return StagingFile(path, release=release)
        except (OSError, DiskFull, DiskFailed) as error:
            release()
            log.warning("the memory file system takes nothing, the home does: %s", error)
            return self.create_staging()

    def clear_staging(self) -> int:
        """Remove what a former process left half-written; return how many files."""
        count = self._ram.clear(self._shards) if self._ram is not None else 0
        for path in self._staging.iterdir():
            path.unlink()
            count += 1
        return count

    def publish(self, staged: StagingFile, blob: BlobId, terms: ShardTerms, *, is_synced: bool) -> None:
        """Give a complete staging file its name; with ``is_synced``, the name survives a power cut too."""
        if is_synced and self._is_in_ram(staged.path):
            staged.close()
            self._copy_home(staged.path, blob, terms)
            return
        self.small.delete(blob, terms.shard)
        self._write_terms(blob, terms, is_synced=is_synced)
        body = self.get_body_path(blob, terms.shard)
        staged.close()
        if terms.tier is Tier.COLD:
            sync_directory(body.parent)
            self.shelf.put(blob, terms.shard, staged.path)
            self._remove_body(body)
            return
        if self._ram is not None and self._is_in_ram(staged.path):
            self._ram.publish(staged.path, body, self._name_staging())
            return
        self._replace_body(staged.path, body)
        if is_synced:
            sync_directory(body.parent)  # the names of both

    def _copy_home(self, source: Path, blob: BlobId, terms: ShardTerms) -> None:
        """Publish, synced, a body that came into memory and turns out to be promised for longer."""
        with source.open("rb") as file:
            staged = self.create_staging(synced_bytes=terms.shard_bytes)
            try:
                while chunk := file.read(COPY_BYTES):
                    staged.write(chunk)
                staged.sync()
                self.publish(staged, blob, terms, is_synced=True)
            finally:
                staged.discard()

    def _is_in_ram(self, path: Path) -> bool:
        return self._ram is not None and self._ram.has(path)

    def _replace_body(self, source: Path, body: Path) -> None:
        """Give a file the name of a body, and remove what a link of that name led to."""
        target = find_target(body)
        os.rename(source, body)
        if target is not None:
            self._remove_target(target)

    def _remove_body(self, body: Path) -> None:
        """Remove a body, wherever it lies; one that is not there is no error."""
        target = find_target(body)
        body.unlink(missing_ok=True)
        if target is not None:  # what dies in between leaves a body that no link names, which is removed at start
            self._remove_target(target)

    def _remove_target(self, target: Path) -> None:
        if self._ram is not None and self._ram.has(target):
            self._ram.remove(target)
            return
        try:
            target.unlink(missing_ok=True)  # of a memory file system that is not in the settings any more
        except OSError as error:
            log.warning("a body that nothing names stays: %s", error)

    def save_terms(self, blob: BlobId, terms: ShardTerms, *, is_synced: bool) -> None:
        """Write or replace the terms beside a shard, whole or not at all.

        Raises: DiskFull when the filesystem has no room.
        """
        if self._is_small(blob, terms.shard):
            self.small.save_terms(blob, terms, is_synced=is_synced)
            return
        self._write_terms(blob, terms, is_synced=is_synced)
        if is_synced:
            sync_directory(self._get_path(blob, terms.shard, "terms").parent)

    def _write_terms(self, blob: BlobId, terms: ShardTerms, *, is_synced: bool) -> None:
        """Write or replace the terms of a shard that has a file; their name is not synced yet."""
        path = self._get_path(blob, terms.shard, "terms")
        if not path.parent.is_dir():
            path.parent.mkdir(exist_ok=True)
            if is_synced:
                sync_directory(self._shards)
        staged = self.create_staging()
        try:
            staged.write(encode_terms(terms))
            if is_synced:
                staged.sync()
            staged.close()
            os.rename(staged.path, path)
        except BaseException:
            staged.discard()
            raise

    def sync_body(self, blob: BlobId, shard: ShardIndex) -> None:
        """Put an already published shard and its name on the medium (a temporary one becomes hot)."""
        if self._is_small(blob, shard):
            return  # saving its terms as synced moves it to the synced database, bytes and all
        path = self.get_body_path(blob, shard)
        if find_target(path) is not None:
            self._copy_home(path, blob, self.load_terms(blob, shard))
            return
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fdatasync(fd)
        finally:
            os.close(fd)
        sync_directory(path.parent)

    def move_to_shelf(self, blob: BlobId, shard: ShardIndex) -> None:
        """Copy a shard that has a file onto the shelf, durably; the file stays until ``drop_file``."""
        if not self._is_small(blob, shard):
            self.shelf.put(blob, shard, self.get_body_path(blob, shard))

    def drop_file(self, blob: BlobId, shard: ShardIndex) -> None:
        """Remove the file of a shard that the shelf has."""
        self._remove_body(self.get_body_path(blob, shard))

    def move_from_shelf(self, blob: BlobId, shard: ShardIndex) -> None:
        """Copy a shard from the shelf into a file of its own, durably; it stays there until ``drop_from_shelf``.

        Raises: DiskFull, ShelfUnavailable, FileNotFoundError.
        """
        if self._is_small(blob, shard) or self.get_body_path(blob, shard).exists():
            return
        reader, staged = self.shelf.open(blob, shard), self.create_staging()
        try:
            while chunk := reader.read(staged.num_bytes, COPY_BYTES):
                staged.write(chunk)
            staged.sync()
            staged.close()
            path = self.get_body_path(blob, shard)
            os.rename(staged.path, path)
            sync_directory(path.parent)
        finally:
            staged.discard()
            reader.close()

    def drop_from_shelf(self, blob: BlobId, shard: ShardIndex) -> None:
        """Remove the shelf's copy of a shard that has a file."""
        self.shelf.delete(blob, shard)

    def load_terms(self, blob: BlobId, shard: ShardIndex) -> ShardTerms:
        """Return the terms beside a shard.

        Raises: FileNotFoundError, MalformedRecord.
        """
        small = self.small.get(blob, shard)
        if small is not None:
            return small[0]
        path = self._get_path(blob, shard, "terms")
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe is not waited for: it is empty
        with os.fdopen(fd, "rb") as file:
            terms = decode_terms(file.read(MAX_TERMS_BYTES))
        if terms.shard != shard:
            raise MalformedRecord(f"terms of shard {terms.shard} beside shard {shard} of {blob.hex()}")
        return terms

    def get_body_path(self, blob: BlobId, shard: ShardIndex) -> Path:
        """Return where the bytes of a shard are, or would be."""
        return self._get_path(blob, shard, "shard")

    def get_body_bytes(self, blob: BlobId, shard: ShardIndex) -> int | None:
        """Return the size of a shard, None where there is none."""
        try:
            return self.get_body_path(blob, shard).stat().st_size
        except FileNotFoundError:
            small = self.small.get(blob, shard)
            if small is not None:
                return len(small[1])
            return self.shelf.get_bytes(blob, shard) if self._is_cold(blob, shard) else None

    def open_body(self, blob: BlobId, shard: ShardIndex) -> ShardReader:
        """Return a reader of a shard's bytes.

        Raises: FileNotFoundError.
        """
        small = self.small.get(blob, shard)
        if small is not None:
            return MemoryReader(small[1])
        try:
            return FileReader(self.get_body_path(blob, shard))
        except FileNotFoundError:
            if not self._is_cold(blob, shard):
                raise
        return self.shelf.open(blob, shard)

    def delete(self, blob: BlobId, shard: ShardIndex) -> None:
        """Remove a shard: bytes first, terms last; what is already gone is no error.

        Raises: ShelfUnavailable; the terms stay then.
        """
        if self._is_cold(blob, shard):
            self.shelf.delete(blob, shard)
        self._remove_body(self.get_body_path(blob, shard))
        self._get_path(blob, shard, "terms").unlink(missing_ok=True)
        self.small.delete(blob, shard)

    def delete_terms(self, blob: BlobId, shard: ShardIndex) -> None:
        """Remove terms that have no shard, and a link that leads nowhere."""
        body = self.get_body_path(blob, shard)
        if not body.exists():
            body.unlink(missing_ok=True)
        self._get_path(blob, shard, "terms").unlink(missing_ok=True)

    def quarantine(self, blob: BlobId, shard: ShardIndex) -> None:
        """Move files that are not what they say out of the way; nothing of them is served or counted."""
        if self._is_cold(blob, shard):
            self.shelf.delete(blob, shard)
        self.small.delete(blob, shard)
        for suffix in ("shard", "terms"):
            path = self._get_path(blob, shard, suffix)
            if find_target(path) is not None:
                self._remove_body(path)  # nobody wants to look at memory
            elif path.exists():
                os.rename(path, self._quarantine / f"{path.name}.{secrets.token_hex(4)}")
        files = sorted(
            (item for item in self._quarantine.iterdir() if item.is_file()), key=lambda item: item.stat().st_ctime_ns
        )
        for path in files[:-KEPT_QUARANTINED]:
            path.unlink(missing_ok=True)

    def iterate_found(self) -> Iterator[FoundShard]:
        """Yield what lies in the shards directory, by name; other files are none of ours and are skipped."""
        for directory in sorted(self._shards.iterdir()):
            if not directory.is_dir():
                continue
            names = {path.name: path for path in directory.iterdir()}
            for stem in sorted({name.rpartition(".")[0] for name in names}):
                key = _parse_stem(stem)
                if key is None:
                    continue
                body = names.get(f"{stem}.shard")
                yield FoundShard(
                    blob=key[0],
                    shard=key[1],
                    body_bytes=None if body is None or not body.exists() else body.stat().st_size,
                    has_terms=f"{stem}.terms" in names,
                )

    def _is_cold(self, blob: BlobId, shard: ShardIndex) -> bool:
        """Tell whether the shelf may have the bytes: the terms beside them say so."""
        try:
            return self.load_terms(blob, shard).tier is Tier.COLD
        except (FileNotFoundError, MalformedRecord):
            return False

    def _is_small(self, blob: BlobId, shard: ShardIndex) -> bool:
        return self.small.get(blob, shard) is not None

    def _get_path(self, blob: BlobId, shard: ShardIndex, suffix: str) -> Path:
        name = blob.hex()
        return self._shards / name[:2] / f"{name}.{shard}.{suffix}"


def _parse_stem(stem: str) -> tuple[BlobId, ShardIndex] | None:
    name, _, index = stem.rpartition(".")
    if len(name) != 64 or not index.isdecimal():
        return None
    try:
        return BlobId(bytes.fromhex(name)), ShardIndex(int(index))
    except ValueError:
        return None
