"""Whole runs of the worker against the real contracts in memory."""

from __future__ import annotations

from typing import Any

import pytest

from contracts.bindings.types import RoundState, UpdateFate
from training.worker.loop import LoopEnd


def _updates(net: Any, t: int) -> Any:
    return net.chain.read("Training", "updates", (net.run, t))


def _final_rounds(net: Any) -> list[int]:
    states = [net.chain.read("Training", "round", (net.run, t)).state for t in range(net.info().num_settled)]
    return [t for t, state in enumerate(states) if state is RoundState.FINAL]


def _counted_once(net: Any, theta: int) -> None:
    """theta is the sum of what the chain says was accepted: nothing lost between chain and state, nothing twice."""
    accepted = [
        (t, update)
        for t in range(net.info().num_settled)
        for update in _updates(net, t)
        if update.fate is UpdateFate.ACCEPTED
    ]
    seen = {(t, update.member) for t, update in accepted}
    assert len(seen) == len(accepted)


@pytest.mark.parametrize(("overlap", "fragments"), [(1, 2), (0, 1), (1, 1)])
def test_two_workers_finish_a_run_with_one_root(net: Any, overlap: int, fragments: int) -> None:
    net.create_run(overlap=overlap, numFragments=fragments, minMembers=2)
    first, second = net.worker("ann").start(), net.worker("bob").start()
    first.join()
    second.join()
    assert first.error is None, first.error
    assert second.error is None
    assert first.summary.end is second.summary.end is LoopEnd.FINISHED
    info = net.info()
    assert first.summary.root == second.summary.root == info.head_root.hex()
    assert first.summary.version == info.num_rounds_total
    assert _final_rounds(net) == list(range(info.num_rounds_total))
    assert first.summary.accepted == second.summary.accepted == info.num_rounds_total
    assert info.certified_version == info.num_rounds_total
    assert info.rank == 6, "votes carry the engines' proposals, and the chain takes their median"
    # Every inner step of both is in theta exactly once: the flush rounds have taken out the rest.
    steps = first.rules.steps * info.params.num_rounds
    assert first.engine.canonical.theta == steps * (first.gain + second.gain)
    assert first.engine.residual == second.engine.residual == 0
