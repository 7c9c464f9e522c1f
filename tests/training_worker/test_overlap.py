"""The exchange hides behind later rounds' inner steps, in the trace of real worker threads (case 21)."""

from __future__ import annotations

import time
from typing import Any

import pytest

from training.worker.trace import compute_overlap, load_trace

STEPS, STEP_SECONDS = 20, 0.02
"""A round of inner steps: 0.4 s."""

LINK_SECONDS = 0.1
"""What dispersing takes here; voting and settling come on top."""


@pytest.mark.parametrize(("overlap", "is_hidden"), [(1, True), (0, False)])
def test_four_fifths_of_the_exchange_run_during_inner_steps_of_later_rounds(
    net: Any, overlap: int, is_hidden: bool
) -> None:
    net.create_run(
        minMembers=2, overlap=overlap, numFragments=4, numRounds=6, roundBlocks=400, graceBlocks=100, attestBlocks=100
    )
    workers = [
        net.worker(name, gain=gain, steps=STEPS, step_seconds=STEP_SECONDS)
        for name, gain in (("ann", 1), ("bob", 1000))
    ]
    for worker in workers:
        worker.ports.before_put = lambda: time.sleep(LINK_SECONDS)  # a thin link
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.error is None, worker.error
    for worker in workers:
        # The first round has nobody's exchange before it, the last that trains nothing to hide behind.
        found = compute_overlap(load_trace(worker.home / "trace.jsonl"), first_round=1, stop_round=4)
        assert found.exchange_seconds > 3 * LINK_SECONDS
        assert (found.share >= 0.8) is is_hidden, f"{found.share:.2f} of the exchange is hidden"
