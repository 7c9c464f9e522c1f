"""The chain is away, or lags, at the start or in the middle (cases 27, 28)."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from contracts.bindings.errors import ChainUnreachable
from contracts.bindings.types import UpdateFate
from training.worker.errors import ChainSilent
from training.worker.journal import Journal, JournalContents, SentUpdate
from training.worker.loop import LoopEnd
from training.worker.outbox import Outbox
from training.worker.trace import Trace
from training.worker.watcher import Watcher


def test_training_goes_on_while_the_chain_is_away_and_the_commit_lands_once(net: Any) -> None:
    net.create_run(minMembers=2, roundBlocks=400)
    ann, bob = net.worker("ann", steps=10, step_seconds=0.02), net.worker("bob", gain=1000, steps=10)
    ann.start()
    bob.start()
    net.wait_for(lambda: bool(ann.rules.engines) and ann.engine.position == [2, 3])
    ann.ports.is_cut = True
    net.wait_for(lambda: 2 in ann.engine.sent, what="the update is sent although the chain is away")
    assert ann.engine.steps_when_sent[2] == 10, "all inner steps of the round were made"
    ann.ports.is_cut = False
    ann.join()
    bob.join()
    assert ann.error is None, ann.error
    assert ann.summary.end is LoopEnd.FINISHED
    total = net.info().num_rounds_total
    commits = [args[1] for name, function, args in net.chain.sends if name == "ann" and function == "commit"]
    assert sorted(commits) == list(range(total))
    assert ann.engine.canonical.theta == 10 * net.info().params.num_rounds * (1 + 1000)


def test_a_commit_that_waits_is_said_now_and_then(net: Any, tmp_path: Path, monkeypatch: Any, caplog: Any) -> None:
    """The outbox tries twice a second; a chain that is away for an hour must not fill the log."""
    ports = net.worker("ann").ports
    ports.is_cut = True
    waiting = tuple(
        SentUpdate(round=index, base_root="00" * 32, digest="00" * 32, payload_file=f"{index}", tokens=1, loss_micro=1)
        for index in range(2)
    )
    contents = JournalContents(genesis_hash="00" * 32, run=1, recipe_digest="00" * 32, sent=waiting)
    trace = Trace(tmp_path / "trace.jsonl")
    outbox = Outbox(
        chain=ports,
        sender=ports,
        payloads=ports,
        journal=Journal(tmp_path, contents),
        trace=trace,
        run=1,
        get_view=lambda: net,
    )
    with caplog.at_level("WARNING", logger="trainer"):
        assert [outbox.work() for _ in range(5)] == [False] * 5
        assert caplog.text.count("the commit has to wait") == 1
        monkeypatch.setattr("training.worker.outbox.SAY_AGAIN_SECONDS", 0.0)
        outbox.work()
        assert caplog.text.count("the commit has to wait") == 3
    trace.close()


def test_a_worker_waits_for_a_chain_that_is_down_at_the_start(net: Any) -> None:
    net.create_run(minMembers=1, numRounds=2)
    ann = net.worker("ann")
    ann.ports.is_cut = True
    ann.start()
    assert not ann.rules.engines
    threading.Timer(0.3, lambda: setattr(ann.ports, "is_cut", False)).start()
    ann.join()
    assert ann.error is None
    assert ann.summary.end is LoopEnd.FINISHED


def test_a_chain_that_flaps_at_the_start_is_outlived(net: Any, monkeypatch: Any) -> None:
    """Every call of the start is cut off once: reading the run, joining, looking for sent updates, restoring."""
    net.create_run(minMembers=1, numRounds=2)
    monkeypatch.setattr("training.worker.asking.RETRY_SECONDS", 0.005)
    ann = net.worker("ann")
    ports = ann.ports
    num_calls = [0]
    check = ports._check

    def flap() -> None:
        num_calls[0] += 1
        if num_calls[0] < 60 and num_calls[0] % 3 == 0:
            raise ChainUnreachable([("memory", "flapping")])
        check()

    monkeypatch.setattr(ports, "_check", flap)
    ann.start()
    ann.join()
    assert ann.error is None, ann.error
    assert ann.summary.end is LoopEnd.FINISHED
    assert num_calls[0] > 60


def test_a_worker_gives_up_with_a_next_step_when_no_chain_ever_answers(net: Any, monkeypatch: Any) -> None:
    net.create_run(minMembers=1)
    ann = net.worker("ann")
    ann.ports.is_cut = True
    monkeypatch.setattr("training.worker.asking.RETRY_SECONDS", 0.01)
    ann.patience_seconds = 0.2
    ann.start().join()
    assert isinstance(ann.error, ChainSilent)
    assert ann.error.exit_code == 3
    assert "--chain" in ann.error.next_step


def test_a_stop_while_no_chain_answers_is_no_failure(net: Any) -> None:
    net.create_run(minMembers=1)
    ann = net.worker("ann")
    ann.ports.is_cut = True
    ann.start()
    ann.stop.set()
    ann.join()
    assert ann.error is None
    assert (ann.summary.end, ann.summary.is_member) == (LoopEnd.STOPPED, None)


def test_a_lagging_url_never_takes_the_view_back(net: Any) -> None:
    net.create_run(minMembers=1)
    ports = net.worker("ann").ports
    watcher = Watcher(ports, net.run, ports.address, poll_seconds=0.005)
    watcher.start()
    try:
        first = watcher.wait_for_newer(None, 5)
        assert first is not None
        ports.lag_blocks = 10
        reached = first.height + 5
        net.wait_for(lambda: net.chain.inner.height > reached + 11)
        seen = watcher.latest()
        assert seen is not None
        assert seen.height >= first.height
        ports.lag_blocks = 0
        newer = watcher.wait_for_newer(seen, 5)
        assert newer is not None
        assert newer.height > seen.height
    finally:
        watcher.stop(5)


def _withhold_first(net: Any, gain: int) -> None:
    """Let the stores certify the first payload of a worker and then lose it."""
    put = net.chain.put

    def putting(data: bytes, tier: int, blocks: int) -> bytes:
        certificate: bytes = put(data, tier, blocks)
        if data[:8] == gain.to_bytes(8, "big", signed=True) and not net.chain.withheld:
            net.chain.withheld |= {blob for blob, kept in net.chain.blobs.items() if kept == data}
        return certificate

    net.chain.put = putting


def test_a_payload_that_nobody_can_have_is_refused_and_the_run_goes_on(net: Any) -> None:
    net.create_run(minMembers=4, numRounds=3, roundBlocks=150, attestBlocks=15)
    others = [net.worker(name, gain=gain) for name, gain in (("ann", 1), ("cat", 10**6), ("dan", 10**9))]
    bob = net.worker("bob", gain=1000)
    _withhold_first(net, 1000)
    for worker in (*others, bob):
        worker.start()
    for worker in (*others, bob):
        worker.join()
        assert worker.error is None, worker.error
    assert {worker.summary.root for worker in (*others, bob)} == {net.info().head_root.hex()}
    update = net.chain.read("Training", "update", (net.run, 0, bob.ports.address))
    assert update.fate is UpdateFate.REFUSED
    assert update.reason.name == "MISSING_PAYLOAD"
    # What was refused went back to error feedback and is in theta at the end, once.
    assert bob.engine.canonical.theta // 1000 % 1000 == bob.rules.steps * net.info().params.num_rounds


def test_of_two_members_the_one_without_the_payload_restores_from_a_checkpoint(net: Any) -> None:
    net.create_run(minMembers=1, numRounds=6, roundBlocks=30, attestBlocks=10, checkpointInterval=2)
    ann, bob = net.worker("ann", gain=1), net.worker("bob", gain=1000)
    _withhold_first(net, 1000)
    ann.start()
    bob.start()
    ann.join()
    bob.join()
    assert ann.error is None, ann.error
    assert bob.error is None, bob.error
    assert ann.summary.root == bob.summary.root == net.info().head_root.hex()
