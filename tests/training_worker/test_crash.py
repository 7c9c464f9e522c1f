"""kill -9 at every moment of the way of an update: nothing is lost, nothing counts twice (cases 1, 27)."""

from __future__ import annotations

from typing import Any

import pytest

from contracts.bindings.types import UpdateFate
from training.worker.loop import LoopEnd

ROUND = 3
"""Where the crash happens: two rounds are settled or in flight by then."""


class Crash(BaseException):
    """What ends the process; nothing of the worker may catch it and go on."""


def _crash_once(state: dict[str, bool]) -> None:
    if not state.get("done"):
        state["done"] = True
        raise Crash


def _arm(worker: Any, moment: str) -> dict[str, bool]:
    """Make a worker crash once at a moment of round ROUND."""
    state: dict[str, bool] = {}
    counts = {"put": 0}

    def before_put() -> None:
        counts["put"] += 1
        if moment == "before put" and worker.engine.sent.get(ROUND) is not None:
            _crash_once(state)

    def at_broadcast(function: str) -> None:
        if worker.engine.sent.get(ROUND) is not None or worker.engine.version > ROUND:
            _crash_once(state)

    worker.ports.before_put = before_put
    if moment == "before broadcast":
        worker.ports.before_broadcast = at_broadcast
    if moment == "after broadcast":
        worker.ports.after_broadcast = at_broadcast
    create = worker.rules._keep

    def keep(engine: Any) -> Any:
        if moment == "inner step":
            train = engine.train

            def failing(round_index: int, num_steps: int, should_stop: Any, **rest: Any) -> Any:
                report = train(
                    round_index, num_steps if round_index != ROUND or state.get("done") else 1, should_stop, **rest
                )
                if round_index == ROUND:
                    _crash_once(state)
                return report

            engine.train = failing
        if moment in ("before save", "after save"):
            save = engine.save

            def saving(path: Any) -> None:
                if moment == "after save":
                    save(path)
                if ROUND in engine.sent:
                    _crash_once(state)
                if moment == "before save":
                    save(path)

            engine.save = saving
        return create(engine)

    worker.rules._keep = keep
    return state


@pytest.mark.parametrize(
    "moment", ["inner step", "before save", "after save", "before put", "before broadcast", "after broadcast"]
)
def test_a_killed_worker_finishes_its_update_after_the_restart(net: Any, moment: str) -> None:
    net.create_run(minMembers=2, roundBlocks=200)
    ann, bob = net.worker("ann"), net.worker("bob")
    state = _arm(ann, moment)
    ann.start()
    bob.start()
    ann.join()
    assert state.get("done"), "the crash did not happen"
    assert isinstance(ann.error, Crash)
    ann.start().join()
    bob.join()
    assert ann.error is None, ann.error
    assert bob.error is None, bob.error
    assert ann.summary.end is LoopEnd.FINISHED
    info = net.info()
    assert ann.summary.root == bob.summary.root == info.head_root.hex()
    fates = [
        net.chain.read("Training", "update", (net.run, t, ann.ports.address)).fate for t in range(info.num_settled)
    ]
    assert fates == [UpdateFate.ACCEPTED] * info.num_rounds_total
    # gain 1 and gain 100: the last two digits are ann's inner steps in theta, each exactly once.
    assert ann.engine.canonical.theta % 100 == ann.rules.steps * info.params.num_rounds
    assert ann.engine.residual == 0
    assert ann.engine.in_flight == ()
    commits = [args[1] for name, function, args in net.chain.sends if name == "ann" and function == "commit"]
    assert sorted(commits) == list(range(info.num_rounds_total)), "one transaction a round"


def test_a_stop_keeps_inner_steps_that_are_not_sent(net: Any) -> None:
    net.create_run(minMembers=1, numRounds=4, roundBlocks=400)
    ann = net.worker("ann", steps=20, step_seconds=0.02)
    ann.start()
    net.wait_for(lambda: bool(ann.rules.engines) and ann.engine.position[0] == 1 and ann.engine.position[1] > 3)
    ann.halt()
    assert ann.error is None
    assert ann.summary.end is LoopEnd.STOPPED
    done, first = ann.engine.position[1], ann.engine
    assert 3 < done < 20
    ann.rules.pause.clear()
    ann.start()
    net.wait_for(lambda: len(ann.rules.engines) == 2 and ann.engine.position[1] > done)
    assert ann.engine is not first
    assert ann.engine.position[0] == 1, "it goes on in the round it was in"
    ann.rules.pause.set()  # no more pauses between steps
    ann.join()
    assert ann.error is None
    assert ann.engine.canonical.theta == 20 * net.info().params.num_rounds


def test_a_damaged_worker_state_is_named_and_replaced_by_a_checkpoint(net: Any, caplog: Any) -> None:
    net.create_run(minMembers=1, numRounds=8, roundBlocks=60)
    ann = net.worker("ann", steps=4, step_seconds=0.02)
    ann.start()
    net.wait_for(lambda: net.info().num_settled >= 5)
    ann.halt()
    (saved,) = (ann.home / "state").iterdir()
    saved.write_bytes(saved.read_bytes()[:-3])
    ann.rules.pause.clear()
    with caplog.at_level("WARNING", logger="trainer"):
        ann.start().join()
    assert ann.error is None, ann.error
    assert saved.name in caplog.text
    assert ann.summary.end is LoopEnd.FINISHED
    assert ann.summary.root == net.info().head_root.hex()


def test_a_kill_in_a_long_round_costs_the_steps_since_the_last_save(net: Any, monkeypatch: Any) -> None:
    """A round may last an hour: what was learned in it is saved on the way, and the next life goes on from there."""
    monkeypatch.setattr("training.worker.loop.SAVE_SECONDS", 0.05)
    monkeypatch.setattr("training.worker.loop.SAVE_SHARE", 1.0)  # a busy disk makes saves rare
    net.create_run(minMembers=1, numRounds=1, numFragments=1, overlap=0, roundBlocks=5_000)
    ann = net.worker("ann", steps=60, step_seconds=0.01)
    keep, started_at = ann.rules._keep, []

    def keeping(engine: Any) -> Any:
        train = engine.train
        started_at.append(engine.position[1])

        def killed(round_index: int, num_steps: int, should_stop: Any, **others: Any) -> Any:
            def stopping() -> bool:
                if engine.position[1] >= 40 and len(ann.rules.engines) == 1:
                    raise Crash
                return bool(should_stop())

            return train(round_index, num_steps, stopping, **others)

        engine.train = killed
        return keep(engine)

    ann.rules._keep = keeping
    ann.start()
    assert ann.thread is not None
    ann.thread.join(15)
    assert isinstance(ann.error, Crash)
    ann.start()
    net.wait_for(lambda: len(ann.rules.engines) == 2 and ann.engine.position[1] > 0)
    ann.join()
    assert ann.error is None, ann.error
    assert ann.summary.end is LoopEnd.FINISHED
    assert ann.engine.canonical.theta == 60, "each step counts once"
    assert started_at[0] == 0
    assert 0 < started_at[1] <= 40, "the first life had made 40"
