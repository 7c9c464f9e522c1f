"""Reads every kept shard again and again, at a gentle rate, and hashes it (SPEC.md 11): bits rot, files vanish.

A shard that does not hash to its root is quarantined and noted as a loss; one that is gone is noted too.  So is one
that the medium can't read, twice, while it reads others: a bad sector is a loss, a disk that is away is none.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from concurrent.futures import Executor
from functools import partial

from da.core.types import BlobId, ShardIndex
from storage.core.errors import ShelfUnavailable, StorageError, UnknownShard
from storage.core.records import encode_key
from storage.node.engine import StoreEngine
from storage.node.pacing import Pacer
from storage.node.proofs import is_intact
from storage.node.threads import run_in

log = logging.getLogger(__name__)

PAGE_SHARDS = 64
"""Names taken from the index at once."""

BAD_MEDIUM = frozenset({errno.EIO, errno.EBADMSG, errno.EUCLEAN, errno.EISDIR})
"""What a read says of a place, and not of the moment."""

PAUSE_SECONDS = 1.0
"""Between two rounds over an index that holds little."""


class Scrubber:
    """Scrubs for ever, in one event loop."""

    def __init__(self, engine: StoreEngine, *, disk: Executor, bytes_per_second: int) -> None:
        """Read at most ``bytes_per_second``."""
        self._engine = engine
        self._disk = disk
        self._pacer = Pacer(bytes_per_second)
        self.num_scrubbed = 0
        """Shards that were read and right."""
        self.num_damaged = 0
        """Shards that were not."""
        self._unreadable: dict[tuple[BlobId, ShardIndex], int] = {}
        # Shards that could not be read when they were last due, and how many had been read well until then.

    async def run(self) -> None:
        """Scrub until cancelled."""
        after = b""
        while True:
            try:
                page = await run_in(self._disk, partial(self._engine.index.get_page, after, limit=PAGE_SHARDS))
                for held in page:
                    record = await run_in(self._disk, self._engine.index.get, held.blob, held.shard)
                    if record is not None:
                        await self._pacer.wait(record.shard_bytes + 1)
                        await self._scrub(held.blob, held.shard)
            except StorageError as error:  # the index can't be read: tried again, the node goes on
                self._engine.health.note(error)
                log.warning("nothing scrubbed: %s", error)
                page = []
            after = encode_key(page[-1].blob, page[-1].shard) if page else b""
            if not page:
                await asyncio.sleep(PAUSE_SECONDS)

    async def _scrub(self, blob: BlobId, shard: ShardIndex) -> None:
        try:
            is_right = await run_in(self._disk, is_intact, self._engine, blob, shard)
        except UnknownShard:
            await run_in(self._disk, self._note_missing, blob, shard)
        except (ShelfUnavailable, OSError) as error:
            self._engine.health.note(error)
            log.warning("shard %d of blob %s was not scrubbed: %s", shard, blob.hex(), error)
            if self._is_bad_place(blob, shard, error):
                await self._give_up(blob, shard)
        else:
            self._unreadable.pop((blob, shard), None)
            self.num_scrubbed += is_right
            if not is_right:
                await self._give_up(blob, shard)

    def _is_bad_place(self, blob: BlobId, shard: ShardIndex, error: ShelfUnavailable | OSError) -> bool:
        """Tell whether the medium has failed here for the second time, and not everywhere in between."""
        if not isinstance(error, OSError) or error.errno not in BAD_MEDIUM:
            return False
        before = self._unreadable.setdefault((blob, shard), self.num_scrubbed)
        if before == self.num_scrubbed:
            return False
        del self._unreadable[blob, shard]
        return True

    async def _give_up(self, blob: BlobId, shard: ShardIndex) -> None:
        self.num_damaged += 1
        log.error("shard %d of blob %s is damaged: into quarantine", shard, blob.hex())
        try:
            await run_in(self._disk, self._engine.quarantine, blob, shard)
        except (StorageError, OSError) as error:
            log.warning("shard %d of blob %s stays where it is for now: %s", shard, blob.hex(), error)

    def _note_missing(self, blob: BlobId, shard: ShardIndex) -> None:
        # Deleted in the meantime, or lost: the index knows.
        if self._engine.index.get(blob, shard) is not None:
            self._engine.losses.add(blob, shard, "missing")
