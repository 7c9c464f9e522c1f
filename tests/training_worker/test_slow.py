"""CASES 18: a worker whose one inner step outlasts rounds misses them, comes back, and stands on the agreed root."""

from __future__ import annotations

from typing import Any

from contracts.bindings.types import UpdateFate


def test_a_worker_too_slow_for_a_round_comes_back_with_the_agreed_state(net: Any) -> None:
    net.create_run(minMembers=2, numRounds=40, roundBlocks=12, graceBlocks=4)
    fast = net.worker("ann", gain=1, steps=4, step_seconds=0.005)
    slow = net.worker("sid", gain=1_000_000, steps=4, step_seconds=60.0)
    slow.rules.pause.set()  # for now its steps take no time

    def fates() -> list[UpdateFate]:
        return [
            net.chain.read("Training", "update", (net.run, t, slow.ports.address)).fate
            for t in range(net.info().num_settled)
        ]

    fast.start()
    slow.start()
    net.wait_for(lambda: UpdateFate.ACCEPTED in fates(), seconds=60)
    slow.rules.pause.clear()
    missed_from = net.info().num_opened + 1
    net.wait_for(lambda: UpdateFate.NONE in fates()[missed_from:], seconds=60, what="a round without the slow worker")
    slow.rules.pause.set()
    missed = missed_from + fates()[missed_from:].index(UpdateFate.NONE)
    net.wait_for(lambda: UpdateFate.ACCEPTED in fates()[missed:], seconds=60, what="a later round with it")
    for worker in (fast, slow):
        worker.join()
        assert worker.error is None, worker.error
    assert slow.summary.root == fast.summary.root == net.info().head_root.hex()
    agreed = {t: theta for t, theta, _ in fast.engine.history}
    assert slow.engine.history, "it has applied settled rounds"
    assert all(agreed[t] == theta for t, theta, _ in slow.engine.history if t in agreed), "and only agreed ones"
    assert slow.engine.residual == 0
    assert slow.engine.in_flight == ()
