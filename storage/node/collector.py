"""The collector: asks the chain about shards whose height has come, and deletes what the plan says (SPEC.md 4).

Invariant: an error deletes nothing.  A failed question ends the sweep; it is made again a few blocks later.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace

from da.core.types import BlobId, Height
from storage.core.errors import StorageError
from storage.core.expiry import MAX_ASKED, RECHECK_BLOCKS, HeldShard, plan_doubts, plan_questions, plan_sweep
from storage.core.records import encode_key
from storage.node.chain_port import ChainPort
from storage.node.engine import StoreEngine
from storage.node.watch import ChainWatch

log = logging.getLogger(__name__)

SWEEP_SHARDS = 2048
"""Shards looked at in one sweep; what is left comes with the next."""


def collect(engine: StoreEngine, chain: ChainPort, height: Height) -> int:
    """Make one sweep at ``height``; return how many shards were deleted.

    Raises: ChainUnreachable; what the chain had answered before is not acted on either.
    """
    due = find_due(engine, height)
    releases = ask_releases(chain, due)
    return finish_sweep(engine, due, releases, height, ask_signed(chain, leave_recent(engine, due), releases, height))


def collect_released(engine: StoreEngine, chain: ChainPort, height: Height) -> int:
    """Look at all shards, also those that are not due, for leases that their owners gave back early.

    Raises: ChainUnreachable.
    """
    count, after = 0, b""
    while page := engine.index.get_page(after, limit=SWEEP_SHARDS):
        releases = ask_releases(chain, page)
        count += finish_early(
            engine, page, releases, height, ask_signed(chain, leave_recent(engine, page), releases, height)
        )
        after = encode_key(page[-1].blob, page[-1].shard)
    return count


def find_due(engine: StoreEngine, height: Height) -> list[HeldShard]:
    """Return the shards of one sweep."""
    return engine.index.get_due(height, limit=SWEEP_SHARDS)


def leave_recent(engine: StoreEngine, due: Sequence[HeldShard]) -> list[HeldShard]:
    """Return those that were not signed for a short while ago: a certificate of the others may be on its way."""
    return [held for held in due if not engine.promises.is_recent((held.blob, held.shard))]


def ask_releases(chain: ChainPort, due: Sequence[HeldShard]) -> dict[BlobId, int]:
    """Ask the chain about all of them.

    Raises: ChainUnreachable.
    """
    releases: dict[BlobId, int] = {}
    for batch in plan_questions(due):
        releases.update(zip(batch, chain.get_release_heights(batch), strict=True))
    return releases


def ask_signed(
    chain: ChainPort, due: Sequence[HeldShard], releases: Mapping[BlobId, int], height: Height
) -> dict[BlobId, int]:
    """Ask until when receipts bind for blobs that were released early.

    Raises: ChainUnreachable.
    """
    doubts = plan_doubts(due, releases, height)
    signed: dict[BlobId, int] = {}
    for start in range(0, len(doubts), MAX_ASKED):
        batch = doubts[start : start + MAX_ASKED]
        signed.update(zip(batch, chain.get_signed_heights(batch), strict=True))
    return signed


def finish_early(
    engine: StoreEngine,
    page: Sequence[HeldShard],
    releases: Mapping[BlobId, int],
    height: Height,
    signed: Mapping[BlobId, int],
) -> int:
    """Delete what was released early; all others stay as they are, and due when they were due."""
    sweep = plan_sweep([held for held in page if held.blob in signed], releases, height, signed)
    return engine.apply_sweep(replace(sweep, keep=()), height=height, again=Height(height + RECHECK_BLOCKS))


def finish_sweep(
    engine: StoreEngine,
    due: Sequence[HeldShard],
    releases: Mapping[BlobId, int],
    height: Height,
    signed: Mapping[BlobId, int] | None = None,
) -> int:
    """Delete what the plan says and note when to look at the rest again; return how many shards went."""
    sweep = plan_sweep(due, releases, height, signed)
    return engine.apply_sweep(sweep, height=height, again=Height(height + RECHECK_BLOCKS))


class Collector:
    """Runs sweeps as the chain grows."""

    def __init__(
        self,
        engine: StoreEngine,
        chain: ChainPort,
        watch: ChainWatch,
        *,
        questions: Executor,
        disk: Executor,
        every_blocks: int,
    ) -> None:
        """Sweep every ``every_blocks`` blocks; ask in ``questions``' thread, work in ``disk``'s."""
        self._engine = engine
        self._chain = chain
        self._watch = watch
        self._questions = questions
        self._disk = disk
        self._every_blocks = every_blocks
        self._after = b""
        self._around_at = 0
        self.num_deleted = 0
        self.num_failed = 0
        """Sweeps that came to nothing, mostly for want of the chain."""

    async def run(self) -> None:
        """Sweep for ever, the first time as soon as the chain is known; ends when cancelled."""
        swept_at: Height | None = None
        while True:
            height = await self._wait_for(None if swept_at is None else Height(swept_at + self._every_blocks))
            try:
                count = await self._sweep(height)
            except (StorageError, OSError) as error:  # chain or own disk: tried again, the node goes on
                self.num_failed += 1
                self._engine.health.note(error)
                log.warning("nothing deleted at height %d: %s", height, error)
            else:
                self.num_deleted += count
                if count:
                    log.info("%d expired shards deleted at height %d", count, height)
            swept_at = height

    async def _sweep(self, height: Height) -> int:
        loop = asyncio.get_running_loop()
        due = await loop.run_in_executor(self._disk, find_due, self._engine, height)
        releases = await loop.run_in_executor(self._questions, ask_releases, self._chain, due)
        settled = leave_recent(self._engine, due)
        signed = await loop.run_in_executor(self._questions, ask_signed, self._chain, settled, releases, height)
        count = await loop.run_in_executor(self._disk, finish_sweep, self._engine, due, releases, height, signed)
        return count + await self._look_around(height)

    async def _look_around(self, height: Height) -> int:
        """Look at the next shards in order of their names, so that each is looked at every so often."""
        loop = asyncio.get_running_loop()
        if not self._after and height < self._around_at:
            return 0
        page = await loop.run_in_executor(
            self._disk, lambda: self._engine.index.get_page(self._after, limit=SWEEP_SHARDS)
        )
        if not page:
            self._after, self._around_at = b"", height + RECHECK_BLOCKS
            return 0
        releases = await loop.run_in_executor(self._questions, ask_releases, self._chain, page)
        settled = leave_recent(self._engine, page)
        signed = await loop.run_in_executor(self._questions, ask_signed, self._chain, settled, releases, height)
        self._after = encode_key(page[-1].blob, page[-1].shard)
        return await loop.run_in_executor(self._disk, finish_early, self._engine, page, releases, height, signed)

    async def _wait_for(self, height: Height | None) -> Height:
        watch = self._watch
        async with watch.advanced:
            while watch.view is None or (height is not None and watch.view.height < height):
                await watch.advanced.wait()
            return watch.view.height
