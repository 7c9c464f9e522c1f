"""The collector: asks the chain about shards whose height has come, and deletes what the plan says (SPEC.md 4).

Invariant: an error deletes nothing.  A failed question ends the sweep; it is made again a few blocks later.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor

from da.core.types import BlobId, Height
from storage.core.errors import ChainUnreachable
from storage.core.expiry import RECHECK_BLOCKS, HeldShard, plan_questions, plan_sweep
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
    return finish_sweep(engine, due, ask_releases(chain, due), height)


def find_due(engine: StoreEngine, height: Height) -> list[HeldShard]:
    """Return the shards of one sweep."""
    return engine.index.get_due(height, limit=SWEEP_SHARDS)


def ask_releases(chain: ChainPort, due: Sequence[HeldShard]) -> dict[BlobId, int]:
    """Ask the chain about all of them.

    Raises: ChainUnreachable.
    """
    releases: dict[BlobId, int] = {}
    for batch in plan_questions(due):
        releases.update(zip(batch, chain.get_release_heights(batch), strict=True))
    return releases


def finish_sweep(engine: StoreEngine, due: Sequence[HeldShard], releases: Mapping[BlobId, int], height: Height) -> int:
    """Delete what the plan says and note when to look at the rest again; return how many shards went."""
    sweep = plan_sweep(due, releases, height)
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
        self.num_deleted = 0
        self.num_failed = 0
        """Sweeps that the chain did not answer."""

    async def run(self) -> None:
        """Sweep for ever, the first time as soon as the chain is known; ends when cancelled."""
        swept_at: Height | None = None
        while True:
            height = await self._wait_for(None if swept_at is None else Height(swept_at + self._every_blocks))
            try:
                count = await self._sweep(height)
            except ChainUnreachable as error:
                self.num_failed += 1
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
        return await loop.run_in_executor(self._disk, finish_sweep, self._engine, due, releases, height)

    async def _wait_for(self, height: Height | None) -> Height:
        watch = self._watch
        async with watch.advanced:
            while watch.view is None or (height is not None and watch.view.height < height):
                await watch.advanced.wait()
            return watch.view.height
