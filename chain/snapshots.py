"""State-sync snapshots on disk, made in the background and taken in chunk by chunk (SPEC.md, State sync).

``<home>/snapshots/<height>/`` holds ``metadata`` and ``chunk-<index>``.  A snapshot is written under a name that
nobody lists and renamed when it is whole.  Making runs in a process of its own, over a read transaction of LMDB:
blocks go on meanwhile, and no Python lock is shared with consensus.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from chain.core.block_hashes import compute_first_missing
from chain.core.blocks import encode_header
from chain.core.errors import InvalidSnapshot
from chain.core.hashing import keccak256, sha256
from chain.core.records import Block
from chain.core.smt import Tree
from chain.core.snapshots import (
    EntryKind,
    Manifest,
    check_order,
    compute_snapshot_hash,
    cut_chunks,
    decode_chunk,
    decode_manifest,
    encode_manifest,
)
from chain.core.types import Height
from chain.own_modules import make_command
from chain.store import Reader, Snapshot, Store

log = logging.getLogger(__name__)

MIN_AGE_SECONDS = 120.0
"""A snapshot that was made or asked for later than this stays: CometBFT's syncer asks a vanished one for ever."""

STOP_SECONDS = 1.0
"""For the making process to end after SIGTERM; it takes milliseconds."""

_METADATA = "metadata"
_UNFINISHED = "unfinished-"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSnapshot:
    """A whole snapshot on disk."""

    manifest: Manifest
    """What its metadata says."""
    metadata: bytes
    """As offered to peers."""


class SnapshotDirectory:
    """The snapshots of one node."""

    def __init__(self, path: Path) -> None:
        """Use ``path``; it is created with the first snapshot."""
        self._path = path

    def heights(self) -> list[int]:
        """Return the heights of whole snapshots, ascending."""
        if not self._path.is_dir():
            return []
        return sorted(int(child.name) for child in self._path.iterdir() if child.name.isdigit())

    def load(self) -> list[StoredSnapshot]:
        """Return the whole snapshots, the newest first; one that can't be read is left out, with a warning."""
        found = []
        for height in reversed(self.heights()):
            try:
                metadata = (self._path / str(height) / _METADATA).read_bytes()
                found.append(StoredSnapshot(manifest=decode_manifest(metadata), metadata=metadata))
            except (OSError, InvalidSnapshot) as error:
                log.warning("snapshot %d is left out: %s", height, error)
        return found

    def load_chunk(self, height: int, index: int) -> bytes | None:
        """Return a chunk, None where there is none (any more); who asks has the snapshot kept for a while."""
        directory = self._path / str(height)
        try:
            chunk = (directory / _name_chunk(index)).read_bytes()
            os.utime(directory)
        except OSError:
            return None
        return chunk

    def make(self, snapshot: Snapshot) -> Manifest:
        """Write a snapshot of an open view of the chain; returns the one on disk where there is one."""
        height = snapshot.height
        target = self._path / str(height)
        if target.is_dir():
            return decode_manifest((target / _METADATA).read_bytes())
        work = self._path / f"{_UNFINISHED}{height}-{os.getpid()}"
        work.mkdir(parents=True)
        try:
            hashes = []
            for index, chunk in enumerate(cut_chunks(snapshot.iterate_entries())):
                _write_durably(work / _name_chunk(index), chunk)
                hashes.append(sha256(chunk))
            manifest = Manifest(
                chain_id=snapshot.genesis_info().chain_id,
                height=height,
                app_hash=snapshot.app_hash,
                chunk_hashes=tuple(hashes),
            )
            _write_durably(work / _METADATA, encode_manifest(manifest))
            work.rename(target)
        finally:
            shutil.rmtree(work, ignore_errors=True)
        return manifest

    def prune(self, num_kept: int, *, min_age_seconds: float = 0.0) -> None:
        """Delete all but the newest snapshots that nobody has asked for lately, and what a killed maker left."""
        newest_deleted = time.time() - min_age_seconds
        for height in self.heights()[:-num_kept]:
            directory = self._path / str(height)
            if directory.stat().st_mtime <= newest_deleted:
                shutil.rmtree(directory, ignore_errors=True)
        if self._path.is_dir():
            for child in self._path.iterdir():
                if child.name.startswith(_UNFINISHED):
                    shutil.rmtree(child, ignore_errors=True)


class SnapshotMaker:
    """The application's end of the making process: tells it the heights that are wanted."""

    def __init__(self, home: Path, *, interval_blocks: int, num_kept: int) -> None:
        """Start the process at the first height that is near."""
        self._interval = interval_blocks
        self._command = make_command("chain.cli", "snapshot", "--home", str(home), "--follow", "--keep", str(num_kept))
        self._process: subprocess.Popen[bytes] | None = None

    def process_committed(self, height: int) -> None:
        """Ask for a snapshot when it is time; never waits."""
        if height % self._interval and (height + 1) % self._interval:
            return
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        if height % self._interval == 0:
            assert self._process.stdin is not None
            try:
                self._process.stdin.write(b"%d\n" % height)
                self._process.stdin.flush()
            except BrokenPipeError:
                log.warning("the snapshot process ended, height %d has no snapshot", height)

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.terminate()
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:  # what it has begun is no snapshot yet
                self._process.kill()
            self._process = None


def follow_heights(home: Path, heights: BinaryIO, *, num_kept: int) -> None:
    """Make the snapshots that are asked for, one height a line, until the end of the input.

    A height that has passed already is made of the newest block instead: the same heights on all nodes let a
    restoring node fetch one snapshot from many, but any whole snapshot will do.
    """
    directory = SnapshotDirectory(home / "snapshots")
    directory.prune(num_kept)
    with Reader(home / "app") as reader:
        for line in iter(heights.readline, b""):
            with reader.snapshot() as snapshot:
                if snapshot.height != int(line):
                    log.warning("block %d came before the snapshot of %d began", snapshot.height, int(line))
                manifest = directory.make(snapshot)
            directory.prune(num_kept, min_age_seconds=MIN_AGE_SECONDS)
            log.info("snapshot of height %d, %d chunks", manifest.height, len(manifest.chunk_hashes))


class Restoration:
    """A snapshot on its way into an empty store."""

    def __init__(self, store: Store, manifest: Manifest) -> None:
        """Forget what the store holds; chunks follow in order."""
        store.wipe()
        self.manifest = manifest
        self._store = store
        self._tree = Tree()
        self._next = 0
        self._last: tuple[int, bytes] | None = None
        self._records: dict[int, list[tuple[bytes, bytes]]] = {}

    @property
    def next_index(self) -> int:
        """The chunk that comes next."""
        return self._next

    @property
    def is_complete(self) -> bool:
        """Whether all chunks are in."""
        return self._next == len(self.manifest.chunk_hashes)

    def is_chunk(self, index: int, chunk: bytes) -> bool:
        """Whether these are the bytes that the metadata promises."""
        return sha256(chunk) == self.manifest.chunk_hashes[index]

    def apply(self, chunk: bytes) -> None:
        """Take in the next chunk, whose hash was checked; raises InvalidSnapshot."""
        entries = decode_chunk(chunk)
        self._last = check_order(self._last, entries)
        self._tree = self._tree.update((key, value) for kind, key, value in entries if kind == EntryKind.STATE)
        for kind, key, value in entries:
            if kind != EntryKind.STATE:
                self._records.setdefault(kind, []).append((key, value))
        self._store.put_entries(entries)
        self._next += 1

    def finish(self, app_hash: bytes) -> Tree:
        """Check the whole against the verified app hash and make it count; raises InvalidSnapshot."""
        if self._tree.root != app_hash:
            raise InvalidSnapshot(f"state hashes to {self._tree.root.hex()}, expected {app_hash.hex()}")
        self._check_records(app_hash)
        self._store.finish_restore(Height(self.manifest.height), app_hash)
        return self._tree

    def _check_records(self, app_hash: bytes) -> None:
        """Check that the newest block's records belong together.

        Its parent's hash is not agreed by consensus, so a liar could still make this node show a wrong one.
        """
        expected = self.manifest.height.to_bytes(8, "big")
        blocks = self._records.get(EntryKind.BLOCK, [])
        names = self._records.get(EntryKind.BLOCK_HEIGHT, [])
        if [key for key, _ in blocks] != [expected]:
            raise InvalidSnapshot(f"no record of block {self.manifest.height}")
        try:
            block = self._store.committed.block(self.manifest.height)
        except (ValueError, TypeError, KeyError) as error:
            raise InvalidSnapshot(f"record of block {self.manifest.height} can't be read: {error}") from error
        assert block is not None, "it was just written"
        if block.app_hash != app_hash or block.hash != keccak256(encode_header(block)):
            raise InvalidSnapshot(f"record of block {self.manifest.height} isn't that of this state")
        if names != [(bytes(block.hash), expected)]:
            raise InvalidSnapshot(f"block {self.manifest.height} isn't found under its hash")
        transactions = [key for key, _ in self._records.get(EntryKind.TRANSACTION, [])]
        receipts = [key for key, _ in self._records.get(EntryKind.RECEIPTS, [])]
        if transactions != sorted(block.transactions) or receipts not in ([], [expected]):
            raise InvalidSnapshot(f"block {self.manifest.height} lacks transactions or receipts")
        self._check_recent_hashes(block)

    def _check_recent_hashes(self, block: Block) -> None:
        """Check that the hashes are those the state lacks; the next block with transactions commits to them."""
        stop = block.height + 1
        heights = range(compute_first_missing(self._store.committed.state, stop), stop)
        recent = dict(self._records.get(EntryKind.RECENT_HASH, []))
        if list(recent) != [each.to_bytes(8, "big") for each in heights] or not all(
            len(value) == 32 for value in recent.values()
        ):
            raise InvalidSnapshot(f"the hashes of blocks {heights.start} to {block.height} are not all there")
        known = {block.height: block.hash, block.height - 1: block.parent_hash}
        if any(recent.get(each.to_bytes(8, "big"), value) != value for each, value in known.items()):
            raise InvalidSnapshot(f"the hashes of recent blocks don't end in block {block.height}")


def describe(manifest: Manifest) -> dict[str, object]:
    """Return what a person or a script wants to know of a snapshot."""
    return {
        "height": manifest.height,
        "app_hash": manifest.app_hash.hex(),
        "num_chunks": len(manifest.chunk_hashes),
        "hash": compute_snapshot_hash(encode_manifest(manifest)).hex(),
    }


def _name_chunk(index: int) -> str:
    return f"chunk-{index:06d}"


def _write_durably(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
