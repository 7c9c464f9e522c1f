"""Workers that are late, away, dropped, or alone (cases 1, 3, 13, 18)."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

from contracts.bindings.types import MemberState, RunState, UpdateFate
from training.worker.errors import GenesisMismatch
from training.worker.loop import LoopEnd


def test_a_worker_with_an_erased_disk_has_the_same_root_from_chain_and_stores_alone(net: Any) -> None:
    net.create_run(minMembers=1, numRounds=12, roundBlocks=200)
    ann, bob = net.worker("ann", steps=4, step_seconds=0.01), net.worker("bob", gain=1000, steps=4, step_seconds=0.01)
    ann.start()
    bob.start()
    net.wait_for(lambda: net.info().num_settled >= 6)
    ann.halt()
    bob.halt()
    shutil.rmtree(ann.home)
    shutil.rmtree(bob.home)
    settled = net.info().num_settled
    ann.rules.pause.clear()
    ann.start()
    net.wait_for(lambda: len(ann.rules.engines) >= 2)
    assert ann.engine.canonical.root() == net.chain.read("Training", "root", (net.run, ann.engine.version))
    assert ann.engine.version >= settled - 1, "the head, or the base of the round that is still open"
    bob.rules.pause.clear()
    bob.start()
    ann.join()
    bob.join()
    assert ann.error is None, ann.error
    assert bob.error is None, bob.error
    assert ann.summary.root == bob.summary.root == net.info().head_root.hex()
    assert net.info().state is RunState.FINISHED


def test_everybody_has_gone_and_one_newcomer_takes_the_run_to_its_end(net: Any) -> None:
    net.create_run(minMembers=1, numRounds=8, roundBlocks=30)
    ann = net.worker("ann", steps=4, step_seconds=0.01)
    ann.start()
    net.wait_for(lambda: net.info().num_settled >= 5)
    ann.halt()
    shutil.rmtree(ann.home)
    zoe = net.worker("zoe", gain=1000)
    zoe.start()
    zoe.join()
    assert zoe.error is None, zoe.error
    assert zoe.summary.end is LoopEnd.FINISHED
    assert zoe.summary.accepted > 0
    assert zoe.summary.root == net.info().head_root.hex()


def test_a_slow_worker_sends_what_it_has_and_stays_in(net: Any) -> None:
    net.create_run(minMembers=3, numRounds=6, roundBlocks=200, graceBlocks=20)
    fast = [net.worker(name, gain=gain) for name, gain in (("ann", 1), ("bob", 1000))]
    slow = net.worker("sid", gain=1_000_000, steps=200, step_seconds=0.01)
    for worker in (*fast, slow):
        worker.start()
    net.wait_for(lambda: net.info().num_settled >= 6, seconds=40)
    slow.rules.pause.set()
    for worker in (*fast, slow):
        worker.join()
        assert worker.error is None, worker.error
    member = net.chain.read("Training", "member", (net.run, slow.ports.address))
    assert member.drops == 0
    assert member.accepted >= 6, "grace lets it send the steps it has"
    assert slow.summary.root == fast[0].summary.root


def test_a_dropped_worker_joins_again_by_itself(net: Any) -> None:
    net.create_run(minMembers=1, numRounds=24, roundBlocks=12, graceBlocks=3)
    ann, bob = net.worker("ann", steps=4, step_seconds=0.02), net.worker("bob", gain=1000, steps=4, step_seconds=0.02)
    ann.start()
    bob.start()
    net.wait_for(lambda: net.info().num_settled >= 2 and bool(bob.rules.engines))
    bob.ports.is_cut = True

    def state() -> Any:
        return net.chain.read("Training", "member", (net.run, bob.ports.address)).state

    net.wait_for(lambda: state() is MemberState.DROPPED, seconds=20)
    bob.ports.is_cut = False
    net.wait_for(lambda: state() is MemberState.ACTIVE, seconds=20)
    ann.join()
    bob.join()
    assert bob.error is None, bob.error
    assert bob.summary.root == ann.summary.root


def test_another_genesis_refuses_the_first_inner_step(net: Any) -> None:
    net.create_run(minMembers=1)
    ann = net.worker("ann")
    other = ann.rules.create_genesis()
    ann.rules.create_genesis = lambda: type(other)(theta=1)
    ann.start().join()
    assert isinstance(ann.error, GenesisMismatch)
    assert f"trainer leave --run {net.run}" in ann.error.next_step
    assert ann.rules.engines == []


@pytest.mark.parametrize("is_whole", [False, True])
def test_an_update_that_does_not_validate_is_refused_by_all_alike(net: Any, caplog: Any, is_whole: bool) -> None:
    caplog.set_level("WARNING", logger="trainer")
    net.create_run(minMembers=2, numRounds=4)
    ann, bob = net.worker("ann", gain=1), net.worker("bob", gain=1000)
    keep = bob.rules._keep

    def spoil(engine: Any) -> Any:
        send = engine.send

        def sending(round_index: int, *, rank: int) -> bytes:
            payload = send(round_index, rank=rank)
            spoiled = payload[:-8] + bytes(8) if is_whole else b"not a payload"
            return spoiled if round_index == 1 else payload

        engine.send = sending
        return keep(engine)

    bob.rules._keep = spoil
    ann.start()
    bob.start()
    ann.join()
    bob.join()
    assert ann.error is None, ann.error
    assert bob.error is None, bob.error
    update = net.chain.read("Training", "update", (net.run, 1, bob.ports.address))
    assert update.fate is UpdateFate.REFUSED
    assert update.reason.name == "INVALID_PAYLOAD"
    assert ann.summary.root == bob.summary.root
    assert bob.engine.canonical.theta // 1000 == bob.rules.steps * net.info().params.num_rounds
    said = [record.getMessage() for record in caplog.records]
    assert any("our update was not counted (invalid payload)" in line for line in said), said
    why = "round: 0, expected 1" if is_whole else "13 bytes, expected 24"
    assert said.count(f"round 1: we refuse the update of {bob.ports.address}: {why}") == 1, said
    assert sum("our own update is invalid, and refused" in line and line.endswith(why) for line in said) == 1, said


def test_leaving_ends_the_worker(net: Any) -> None:
    net.create_run(minMembers=1, numRounds=50)
    ann = net.worker("ann", steps=4, step_seconds=0.02)
    ann.start()
    net.wait_for(lambda: net.info().num_settled >= 2)
    net.chain.execute("ann", "leave", (net.run,), 0)
    ann.join()
    assert ann.error is None
    assert ann.summary.end is LoopEnd.LEFT


def test_two_processes_with_one_key_never_count_twice(net: Any) -> None:
    net.create_run(minMembers=1, numRounds=6, roundBlocks=60)
    first = net.worker("ann", gain=1, home="one", steps=4, step_seconds=0.01)
    second = net.worker("ann", gain=1, home="two", steps=4, step_seconds=0.01)
    first.start()
    second.start()
    for worker in (first, second):
        worker.join()
        assert worker.error is None, worker.error
    assert first.summary.root == second.summary.root == net.info().head_root.hex()
    total = net.info().num_rounds_total
    counted = [t for t, gain in first.engine.canonical.counted]
    assert sorted(counted) == sorted(set(counted)), "one update a round and key"
    assert first.summary.accepted == len(counted) <= total


def test_when_nobody_can_show_the_head_the_run_goes_back_in_the_open(net: Any) -> None:
    net.create_run(minMembers=1, numRounds=14, roundBlocks=20, attestBlocks=10, checkpointInterval=4, recoverBlocks=40)
    ann = net.worker("ann", steps=4, step_seconds=0.04)
    ann.start()
    net.wait_for(lambda: net.info().num_settled == net.info().certified_version + 2 >= 6)
    ann.halt()
    shutil.rmtree(ann.home)
    info = net.info()
    assert info.num_settled > info.certified_version
    with net.chain.lock:
        lost = net.chain.read("Training", "updates", (net.run, info.certified_version))
        net.chain.withheld |= {update.blob for update in lost}
    assert lost, "a payload after the checkpoint is gone"
    zoe = net.worker("zoe", gain=1000)
    zoe.start()
    zoe.join()
    assert zoe.error is None, zoe.error
    assert zoe.summary.end is LoopEnd.FINISHED
    assert zoe.summary.root == net.info().head_root.hex()
    (reverted,) = net.chain.inner.events("RunReverted")
    assert reverted["toVersion"] == info.certified_version


def test_a_member_without_an_inner_step_sends_no_update_that_would_be_paid(net: Any) -> None:
    """As one that joins when only flush rounds are left: the three others are enough, and it votes all the same."""
    net.create_run(minMembers=4, numRounds=4, numFragments=4, roundBlocks=2_000, attestBlocks=500, graceBlocks=25)
    workers = [net.worker(name, steps=2, step_seconds=0.01) for name in ("ann", "bob", "cat")]
    late = net.worker("late")
    late.rules.num_steps = lambda round_index, local_steps: 0  # as in flush rounds, from the first on
    for worker in (*workers, late):
        worker.start()
    for worker in (*workers, late):
        worker.join()
        assert worker.error is None, worker.error
    assert net.info().state is RunState.FINISHED
    assert late.summary.root == workers[0].summary.root
    assert late.summary.accepted == 0
    assert net.chain.read("Training", "member", (net.run, late.ports.address)).drops == 0, "it votes"
    assert workers[0].summary.accepted == net.info().num_rounds_total
