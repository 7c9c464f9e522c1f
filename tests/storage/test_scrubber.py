"""One shard that can't be read keeps no other from being looked at."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from da.core.types import ShardIndex
from storage.node.scrubber import Scrubber

NUM_SHARDS = 5


async def test_terms_that_are_damaged_are_a_loss_and_the_round_goes_on(
    open_engine: Any, keep: Any, make_shard: Any, wait_until_async: Any
) -> None:
    engine = open_engine()
    shards = sorted((make_shard(os.urandom(1_000)) for _ in range(NUM_SHARDS)), key=lambda shard: shard.offer.blob)
    for shard in shards:
        keep(engine, shard)
    first = shards[0].offer.blob
    engine.disk.get_body_path(first, ShardIndex(0)).with_suffix(".terms").write_bytes(b"junk")
    with ThreadPoolExecutor(1) as threads:
        scrubber = Scrubber(engine, disk=threads, bytes_per_second=1 << 30)
        running = asyncio.create_task(scrubber.run())
        await wait_until_async(lambda: scrubber.num_scrubbed >= NUM_SHARDS - 1, "the others are scrubbed")
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert engine.losses.take_all() == [(first, ShardIndex(0))]
    assert scrubber.num_damaged == 0
