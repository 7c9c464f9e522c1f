"""What a worker measures of its link and machine; its votes carry what it would change, and rounds follow them."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from training.core.recipe import RoundsRecipe
from training.core.recipe_text import parse_recipe
from training.core.schedule import plan_steps
from training.recipes.shipped import load_shipped
from training.worker.pace import Pace
from training.worker.trace import EventKind, Trace, TraceEvent


def event(kind: EventKind, round_index: int, start: float, end: float) -> TraceEvent:
    return TraceEvent(kind=kind, round=round_index, start_seconds=start, end_seconds=end, wall_seconds=0.0)


def test_pace_is_the_median_of_what_the_trace_hears(tmp_path: Path) -> None:
    pace = Pace()
    assert pace.measure() is None
    for index, seconds in enumerate((2.0, 4.0, 60.0)):
        train = event(EventKind.TRAIN, index, 0, 5)
        pace.note(replace(train, counters={"steps": 10}))
        pace.note(event(EventKind.DISPERSE, index, 0, seconds / 2))
        pace.note(event(EventKind.FETCH, index, 10, 10 + seconds / 2))
        pace.note(event(EventKind.WAIT, index, 0, 1000))
    link = pace.measure()
    assert link is not None
    assert (link.exchange_seconds, link.step_seconds) == (4.0, 0.5)
    for index in range(3, 100):
        pace.note(event(EventKind.COMMIT, index, 0, 1))
    newest = pace.measure()
    assert newest is not None
    assert newest.exchange_seconds == 1.0
    trace = Trace(tmp_path / "trace.jsonl", (pace.note,))
    with trace.span(EventKind.TRAIN, 100) as span:
        span.counters = {"steps": 1}
    trace.close()
    newest = pace.measure()
    assert newest is not None
    assert newest.step_seconds == pytest.approx(0.5)


@pytest.mark.parametrize("max_local_steps", [7, 0], ids=["may grow to 7", "fixed"])
def test_voted_steps_follow_the_link(net: Any, max_local_steps: int) -> None:
    """Dispersal takes far longer than inner steps: each round votes a larger H, and trains the steps of the voted one.

    Such a ratio asks for more than the recipe's largest H; the chain takes the votes' median and moves by one a round.
    """
    net.create_run(minMembers=2, numFragments=2, localSteps=4, numRounds=6, roundBlocks=3000, attestBlocks=1000)
    rounds = RoundsRecipe(num_fragments=2, overlap=1, local_steps=4, num_rounds=6, max_local_steps=max_local_steps)
    recipe = replace(parse_recipe(load_shipped("tiny")), rounds=rounds)
    workers = [net.worker(name, gain=gain, adapting=recipe) for name, gain in (("ann", 1), ("bob", 1000))]
    for worker in workers:
        worker.ports.before_put = lambda: time.sleep(0.4)  # the link, for what has no length
        worker.start()
    for worker in workers:
        worker.join(120)
        assert worker.error is None, worker.error
    first, second = workers
    agreed = [net.chain.read("Training", "round", (net.run, t)).local_steps for t in range(6)]
    votes = [args[-1] for _, function, args in net.chain.sends if function == "attest"]
    if max_local_steps:
        assert set(votes) == {7}, "votes rest on what was measured, up to the recipe's bound"
        assert agreed[0] == 4, "before anything was measured"
        assert agreed[-1] == 7
        assert all(after - before in (0, 1) for before, after in itertools.pairwise(agreed))
    else:
        assert set(votes) == {0}
        assert set(agreed) == {4}
    steps = [plan_steps(rounds, t, local_steps) for t, local_steps in enumerate(agreed)]
    for worker in workers:
        assert [worker.rules.local_steps[t] for t in range(6)] == agreed
        assert [worker.engine.steps_when_sent[t] for t in range(6)] == steps
    assert first.summary.root == second.summary.root == net.info().head_root.hex()
    assert first.engine.canonical.theta == sum(steps) * (first.gain + second.gain), "every step once"
