"""Where cold shards lie: a shelf takes whole shards and gives ranges of them (DESIGN 6; SPEC.md 9).

Two kinds: append segments on a disk (``segments``), any S3-compatible bucket (``bucket``). Terms stay beside the other
tiers' terms; a shelf knows bytes only. Invariant: ``put`` returns when the bytes are durable.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from da.core.types import BlobId, ShardIndex
from storage.node.body import ShardReader


class Shelf(Protocol):
    """Cold shards; every method is thread-safe and may block."""

    def put(self, blob: BlobId, shard: ShardIndex, body: Path) -> None:
        """Keep a copy of the file ``body``, durably; replaces what was there.

        Raises: DiskFull, ShelfUnavailable; then what was there is as before.
        """

    def get_bytes(self, blob: BlobId, shard: ShardIndex) -> int | None:
        """Return the size of a shard, None where there is none.

        Raises: ShelfUnavailable.
        """

    def open(self, blob: BlobId, shard: ShardIndex) -> ShardReader:
        """Return a reader.

        Raises: FileNotFoundError, ShelfUnavailable.
        """

    def delete(self, blob: BlobId, shard: ShardIndex) -> None:
        """Remove a shard; one that is not there is no error.

        Raises: ShelfUnavailable.
        """

    def iterate_keys(self) -> Iterator[tuple[BlobId, ShardIndex]]:
        """Yield what is there.

        Raises: ShelfUnavailable; a listing that broke off is never taken for a whole one.
        """
