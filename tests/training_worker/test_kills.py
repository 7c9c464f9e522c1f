"""A real worker killed twenty times at random, and stopped for half a minute; and how much of its exchange hides.

Cases 1, 17, 21 and 27 on real processes, for ``-m soak``: rounds are long enough here that inner steps outlast an
exchange, as they do in earnest.  ``test_crash.py`` goes through each moment of an update, in memory, in every run.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from training_worker_devnet import open_devnet
from training_worker_tiny_recipe import make_recipe

from contracts.bindings.types import RunState, UpdateFate
from training.core.recipe import CodecKind
from training.worker.trace import compute_overlap, load_trace

pytestmark = [pytest.mark.integration, pytest.mark.soak, pytest.mark.timeout(2_400)]

NUM_KILLS = 20
LONGEST_LIFE_SECONDS = 8.0
"""Between a start and the kill after it: from the imports to the middle of a later round."""

STOPPED_SECONDS = 30.0

RECIPE = make_recipe(
    "kills",
    12,
    model={"width": 32, "num_layers": 2, "hidden": 64, "context": 32},
    inner={"batch_size": 4, "learning_rate": 0.005},
    codec={"kind": CodecKind.LOW_RANK_2BIT},
    rounds={"local_steps": 2400, "num_rounds": 400},
)


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with open_devnet(tmp_path_factory.mktemp("kills"), ("ann", "bob")) as found:
        found.create_run(RECIPE)
        for worker in found.workers.values():
            worker.start()
        found.wait_for(lambda: found.info().num_settled >= 4, "the run has begun", 400)
        yield found


def test_most_of_the_exchange_runs_during_inner_steps(net: Any) -> None:
    first = net.info().num_opened
    net.wait_for(lambda: net.info().num_settled >= first + 6, "six rounds more", 400)
    for worker in net.workers.values():
        events = load_trace(worker.home / "trace.jsonl")
        found = compute_overlap(events, first_round=first, stop_round=first + 5)
        assert found.exchange_seconds > 0
        assert found.share >= 0.8, f"{worker.name}: {found.share:.2f} of {found.exchange_seconds:.1f} s"


def test_twenty_kills_lose_nothing_and_count_nothing_twice(net: Any) -> None:
    ann, chance = net.workers["ann"], random.Random(5)
    for _ in range(NUM_KILLS):
        time.sleep(chance.uniform(0.0, LONGEST_LIFE_SECONDS))
        assert ann.process.poll() is None, ann.log[-3000:]
        ann.kill()
        ann.start()
    net.wait_for_counted("ann", net.info().num_opened)
    assert "damaged" not in ann.log
    assert "Traceback" not in ann.log


def test_a_worker_that_stood_still_for_half_a_minute_goes_on(net: Any) -> None:
    bob = net.workers["bob"]
    settled = net.info().num_settled
    os.kill(bob.process.pid, signal.SIGSTOP)
    time.sleep(STOPPED_SECONDS)
    os.kill(bob.process.pid, signal.SIGCONT)
    net.wait_for_counted("bob", net.info().num_opened)
    assert net.info().num_settled > settled
    assert bob.process.poll() is None


def test_the_run_ends_with_one_root_for_both(net: Any) -> None:
    info = net.info()
    net.owner.send("Training", "setParams", 1, replace(info.params, num_rounds=info.num_opened + 3))
    for worker in net.workers.values():
        assert worker.process.wait(180) == 0, worker.log[-3000:]
    info = net.info()
    assert info.state is RunState.FINISHED
    for name, worker in net.workers.items():
        assert info.head_root.hex() in worker.log.replace("\n", "")
        assert net.member(name).accepted == net.fates(name).count(UpdateFate.ACCEPTED)
