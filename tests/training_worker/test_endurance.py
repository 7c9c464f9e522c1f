"""A worker's threads over five hundred rounds: descriptors, threads, files and memory stay flat (case 23)."""

from __future__ import annotations

import gc
import threading
from typing import Any

import psutil
import pytest

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]

FIRST, LAST = 150, 500
"""Settled rounds at which everything is counted."""


def test_nothing_grows_over_five_hundred_rounds(net: Any) -> None:
    net.chain.block_seconds = 0.004
    net.create_run(minMembers=2, numRounds=LAST + 20, roundBlocks=400, graceBlocks=50, attestBlocks=100)
    workers = [net.worker(name, gain=gain) for name, gain in (("ann", 1), ("bob", 100_000))]
    for worker in workers:
        worker.start()
    process = psutil.Process()
    counts = []
    for settled in (FIRST, LAST):
        net.wait_for(lambda settled=settled: net.info().num_settled >= settled, seconds=400)  # type: ignore[misc]
        gc.collect()
        kept = [
            len([path for path in (worker.home / folder).iterdir() if not path.name.endswith(".tmp")])
            for worker in workers
            for folder in ("state", "sent", "payloads")
        ]
        counts.append((process.memory_info().rss, process.num_fds(), threading.active_count(), max(kept)))
    (rss, fds, threads, _), (rss_after, fds_after, threads_after, files) = counts
    assert fds_after <= fds + 4
    assert threads_after <= threads + 2
    assert files <= 32, "payloads go when a checkpoint covers them"
    # The chain in memory keeps its records and logs; a worker that kept a round would take more.
    assert rss_after - rss < 64 << 20, f"{(rss_after - rss) >> 20} MiB more"
    for worker in workers:
        worker.halt()
        assert worker.error is None, worker.error
