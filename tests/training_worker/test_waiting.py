"""No wait of a worker is without an end, and what is away for a while is waited for (cases 1, 10, 27)."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from training_worker_toy import ToyState

from contracts.bindings.types import RunState
from training.worker.agreement import Agreement
from training.worker.asking import Interrupted
from training.worker.errors import ChainSilent, Fatal, GaveUp, StateUnavailable
from training.worker.journal import Journal, JournalContents, SentUpdate
from training.worker.loop import LoopEnd, RoundLoop
from training.worker.metrics_sinks import JsonLines, TensorBoard
from training.worker.outbox import Outbox
from training.worker.process import explain_memory
from training.worker.restore import restore_version
from training.worker.saying import Said
from training.worker.trace import EventKind, Trace
from training.worker.watcher import Watcher


@pytest.fixture
def left_run(net: Any) -> Any:
    """A run of one worker that has left it with a certified checkpoint, and whose disk is gone."""
    net.create_run(minMembers=1, numRounds=8, roundBlocks=30, numFragments=1, overlap=0, checkpointInterval=4)
    ann = net.worker("ann", steps=4, step_seconds=0.01)
    ann.start()
    net.wait_for(lambda: net.info().certified_version >= 4)
    ann.halt()
    shutil.rmtree(ann.home)
    return net


def test_stores_that_are_away_when_a_worker_starts_are_waited_for(
    left_run: Any, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """Six tries without them were taken for a defect of the software, and ended the worker with code 2."""
    monkeypatch.setattr("training.worker.session.WANT_SECONDS", 0.02)
    left_run.chain.withheld = set(left_run.chain.blobs)
    zoe = left_run.worker("zoe", gain=1000)
    with caplog.at_level("WARNING", logger="trainer"):
        zoe.start()
        left_run.wait_for(lambda: caplog.text.count("restoring from a checkpoint: ") > 8, what="it has tried again")
    left_run.chain.withheld = set()
    zoe.join()
    assert zoe.error is None, zoe.error
    assert zoe.summary.end is LoopEnd.FINISHED
    assert zoe.summary.root == left_run.info().head_root.hex()


def test_stores_that_stay_away_end_a_worker_with_the_code_for_that(
    left_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("training.worker.session.WANT_SECONDS", 0.02)
    left_run.chain.withheld = set(left_run.chain.blobs)
    zoe = left_run.worker("zoe", gain=1000)
    zoe.patience_seconds = 0.5
    zoe.start().join()
    assert isinstance(zoe.error, StateUnavailable)
    assert zoe.error.exit_code == GaveUp.exit_code == 3
    assert "no seat has it" in str(zoe.error)
    assert "storage stat" in zoe.error.next_step


def test_a_chain_that_goes_away_during_the_replay_is_given_up(left_run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    zoe = left_run.worker("zoe", gain=1000)
    zoe.patience_seconds = 0.5
    monkeypatch.setattr("training.worker.session.compute_start_version", lambda *_: 8)
    adopt = Agreement.adopt

    def cutting(agreement: Agreement, view: Any) -> bool:
        zoe.ports.is_cut = True
        agreement._chain.height()
        return adopt(agreement, view)

    monkeypatch.setattr(Agreement, "adopt", cutting)
    zoe.start().join()
    assert isinstance(zoe.error, ChainSilent)
    assert "catching up: " in str(zoe.error)
    assert "--chain" in zoe.error.next_step


def test_a_chain_that_goes_away_while_a_settlement_is_waited_for_is_given_up(
    net: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The round in the last view stays open in it for ever, and its base is never reached."""
    net.create_run(minMembers=2, numRounds=60, roundBlocks=40, checkpointInterval=1000)
    ann, bob = net.worker("ann", gain=1), net.worker("bob", gain=1000)
    ann.patience_seconds = 0.5
    adopt, wait = Agreement.adopt, RoundLoop._wait_for_base

    def starving(agreement: Agreement, view: Any) -> bool:
        if agreement._me == ann.ports.address and agreement.version >= 2:
            raise StateUnavailable("round 2: payloads are away", next_step="wait")
        return adopt(agreement, view)

    def cutting(loop: RoundLoop, info: Any) -> None:
        if loop._me == ann.ports.address and loop._engine.version >= 2:
            ann.ports.is_cut = True
        wait(loop, info)

    monkeypatch.setattr(Agreement, "adopt", starving)
    monkeypatch.setattr(RoundLoop, "_wait_for_base", cutting)
    ann.start()
    bob.start()
    ann.join()
    assert ann.ports.is_cut, "it has waited for a settlement"
    assert isinstance(ann.error, ChainSilent)


def test_a_stop_is_heard_between_two_parts_of_a_checkpoint(net: Any, tmp_path: Path) -> None:
    """A checkpoint of many parts takes longer than the ten seconds that a stop may take."""
    net.create_run(numCheckpointParts=4)
    ports, stop, asked = net.worker("ann").ports, threading.Event(), []
    get = ports.get

    def stopping(blob: bytes, *, max_bytes: int) -> bytes:
        asked.append(blob)
        stop.set()
        data: bytes = get(blob, max_bytes=max_bytes)
        return data

    ports.get = stopping
    trace = Trace(tmp_path / "trace.jsonl")
    rules = net.workers[0].rules
    with pytest.raises(Interrupted, match="part 1 of checkpoint 0"):
        restore_version(chain=ports, payloads=ports, rules=rules, trace=trace, run=net.run, version=0, stop=stop)
    assert len(asked) == 1
    state, _ = restore_version(chain=ports, payloads=ports, rules=rules, trace=trace, run=net.run, version=0)
    assert state == ToyState()
    trace.close()


@pytest.mark.parametrize("is_put_away", [True, False], ids=["by the main thread", "by somebody"])
def test_a_payload_that_is_gone_from_the_disk_ends_no_worker(net: Any, tmp_path: Path, is_put_away: bool) -> None:
    """While the outbox was busy with an older one its round settled, and the main thread put it away."""
    net.create_run()
    ports = net.worker("ann").ports
    update = SentUpdate(round=0, base_root="00" * 32, digest="00" * 32, payload_file="0-gone", tokens=1, loss_micro=1)
    contents = JournalContents(genesis_hash="00" * 32, run=net.run, recipe_digest="00" * 32, sent=(update,))
    journal = Journal(tmp_path, contents)
    load = journal.load_payload

    def loading(wanted: SentUpdate) -> bytes:
        if is_put_away:
            journal._contents = replace(contents, sent=())
        return load(wanted)

    journal.load_payload = loading  # type: ignore[method-assign]
    trace = Trace(tmp_path / "trace.jsonl")
    view = Watcher(ports, net.run, ports.address).look()
    outbox = Outbox(
        chain=ports, sender=ports, payloads=ports, journal=journal, trace=trace, run=net.run, get_view=lambda: view
    )
    outbox.work()
    assert outbox.work(), "nothing is left to do"
    notes = [each.note for each in journal.contents.sent]
    assert notes == [] if is_put_away else "gone from the disk" in notes[0]
    trace.close()


def test_what_stays_in_the_way_is_said_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("training.worker.saying.time.monotonic", lambda: now[0])
    said = Said()
    assert [said.is_due("stores", 10.0) for _ in range(3)] == [True, False, False]
    assert said.is_due("chain", 10.0)
    now[0] += 10.0
    assert [said.is_due("stores", 10.0) for _ in range(2)] == [True, False]
    for number in range(1_000):
        said.is_due(f"round {number}")
    assert len(said._said_at) <= 64


def test_figures_without_room_end_no_worker(tmp_path: Path, caplog: Any) -> None:
    """The kernel's own full device under each file, when a line is written and when the file is closed."""
    trace = Trace(Path("/dev/full"))
    with trace.span(EventKind.TRAIN, 0):
        pass
    trace.close()
    lines = JsonLines(Path("/dev/full"), 0.0)
    lines.write(1, 1.0, {"train/loss": 1.0})
    lines.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_event_files_without_room_end_no_worker(tmp_path: Path, caplog: Any) -> None:
    """Their writer's thread ends with the first line that has no room: the next point begins another file."""
    board = TensorBoard(tmp_path)
    (file,) = tmp_path.iterdir()
    file.unlink()
    file.symlink_to("/dev/full")
    deadline = time.monotonic() + 20.0
    with caplog.at_level("WARNING", logger="trainer"):
        while "has a gap" not in caplog.text:
            assert time.monotonic() < deadline
            board.write(1, 1.0, {"train/loss": 1.0})
    file.unlink()
    board.write(1_000, 1.0, {"train/loss": 2.0})
    board.close()
    events = EventAccumulator(str(tmp_path)).Reload()
    assert [(each.step, each.value) for each in events.Scalars("train/loss")] == [(1_000, 2.0)]


@pytest.mark.parametrize("error", [MemoryError(), torch.OutOfMemoryError("CUDA out of memory. Tried 2 GiB")], ids=str)
def test_memory_that_ends_is_said_with_what_takes_less(error: Exception) -> None:
    with pytest.raises(Fatal, match="no memory is left on cuda:3") as caught, explain_memory("cuda:3"):
        raise error
    assert "--shards" in caught.value.next_step


def test_memory_that_ends_on_the_cpu_is_said_too() -> None:
    with pytest.raises(Fatal, match="no memory is left on cpu"), explain_memory("cpu"):
        torch.empty(1 << 55)
    with pytest.raises(RuntimeError, match="shape"), explain_memory("cpu"):
        torch.empty(2).reshape(3)


def test_votes_wait_for_no_evaluation(net: Any) -> None:
    """Of a large model it takes minutes, and a vote has seconds."""
    net.create_run(minMembers=2, numRounds=10, roundBlocks=400, attestBlocks=400, checkpointInterval=1_000)
    workers = [net.worker("ann"), net.worker("bob", gain=1_000)]
    is_over, began = threading.Event(), threading.Event()

    def evaluate(_state: Any) -> float:
        began.set()
        is_over.wait(30)
        return 2.5

    for worker in workers:
        worker.rules.evaluate = evaluate
        worker.start()
    try:
        net.wait_for(began.is_set)
        settled = net.info().num_settled
        net.wait_for(lambda: net.info().num_settled >= min(settled + 4, 10), what="both vote on")
    finally:
        is_over.set()
    for worker in workers:
        worker.join()
        assert worker.error is None, worker.error
    recorded = net.chain.read("Training", "evaluations", (net.run, 0, 256))
    assert {each.loss_micro for each in recorded} == {2_500_000}


def test_the_last_version_is_evaluated_though_the_one_before_took_long(net: Any) -> None:
    """The run was over for the worker once the evaluation under way had ended, before the last one had begun."""
    net.create_run(minMembers=1, numRounds=6)
    ann = net.worker("ann")
    seen: list[Any] = []

    def evaluate(state: Any) -> float:
        seen.append(state)
        if len(seen) == 1:
            net.wait_for(lambda: net.info().state is RunState.FINISHED, what="the run is over")
        time.sleep(0.3)
        return float(len(seen))

    ann.rules.evaluate = evaluate
    ann.start().join()
    assert ann.error is None, ann.error
    recorded = net.chain.read("Training", "evaluations", (net.run, 0, 256))
    assert [each.version for each in recorded][-1] == net.info().num_rounds_total
    assert len(seen) == len(recorded) >= 2


def test_a_process_ends_in_order_while_an_evaluation_computes() -> None:
    """It aborted: the interpreter closed under a thread that was inside torch."""
    script = """
import sys, threading, torch
from training import cli
from training.worker.ending import EVALUATION_THREAD

def compute():
    matrix = torch.ones(700, 700)
    while True:
        matrix = (matrix @ matrix).clamp(0, 1)

@cli.app.command("compute")
def command():
    threading.Thread(target=compute, name=EVALUATION_THREAD, daemon=True).start()
    print("all is well")

sys.argv = ["trainer", "compute"]
cli.main()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "all is well\n"), done.stderr


def test_an_evaluation_that_fails_ends_the_worker_with_its_reason(net: Any) -> None:
    net.create_run(minMembers=1, numRounds=6)
    ann = net.worker("ann")

    def evaluate(_state: Any) -> float:
        raise MemoryError("none for the logits")

    ann.rules.evaluate = evaluate
    ann.start().join(20)
    assert isinstance(ann.error, MemoryError)


def test_a_first_look_that_takes_time_is_no_silent_chain(
    net: Any, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """It was said not to have answered yet, of a run that had just been read from it."""
    net.create_run(minMembers=1, numRounds=8, roundBlocks=30, numFragments=1, overlap=0)
    ann = net.worker("ann", steps=4, step_seconds=0.01)
    ann.start()
    net.wait_for(lambda: net.info().num_settled >= 2)
    ann.halt()
    look, begun = Watcher._look, threading.Event()

    def slow(watcher: Watcher) -> Any:
        if not begun.is_set():
            begun.set()
            net.wait_for(lambda: "waiting: " in caplog.text, what="the worker says what it waits for")
        return look(watcher)

    monkeypatch.setattr(Watcher, "_look", slow)
    caplog.clear()
    with caplog.at_level("INFO", logger="trainer"):
        ann.start().join()
    assert "waiting: reading the run from the chain" in caplog.text
    assert "answered" not in caplog.text
