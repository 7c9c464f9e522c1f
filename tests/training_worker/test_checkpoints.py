"""1,500 checkpoints in one worker's life: the newest is the newest, nothing grows, none is lost (cases 10, 11)."""

from __future__ import annotations

import gc
import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from training_worker_fakes import MemoryChain, MemoryPorts
from training_worker_toy import ToyRules, ToyState

from contracts.bindings.types import RoundState, RunState
from training.worker.agreement import Agreement
from training.worker.duties import HOT_TIER, Duties, Parts, join_run
from training.worker.errors import PayloadUnavailable
from training.worker.journal import Journal, JournalContents, SentUpdate
from training.worker.restore import restore_newest
from training.worker.source import PayloadSource, compute_digest
from training.worker.trace import Trace
from training.worker.watcher import Watcher

FIRST = 100
"""Checkpoints after which everything is counted for the first time."""

RECIPE = b'name = "toy"\n'


class FlatRules(ToyRules):  # type: ignore[misc]
    """The toy's rules with a state of one size: that of what is kept must show."""

    def settle(self, state: Any, round_index: int, payloads: Any, *, rank: int, local_steps: int) -> Any:
        done = super().settle(state, round_index, payloads, rank=rank, local_steps=local_steps)
        return replace(done, state=replace(done.state, counted=done.state.counted[-4:]))


class Life:
    """One worker's parts, each called in turn: no thread and no pause, so that 1,500 rounds take seconds."""

    def __init__(self, home: Path, last: int) -> None:
        self.chain = MemoryChain()
        self.run = self.chain.create_run(
            ToyState(),
            RECIPE,
            minMembers=1,
            numFragments=1,
            overlap=0,
            numRounds=last + 10,
            localSteps=1,
            roundBlocks=60,
            graceBlocks=5,
            attestBlocks=15,
            checkpointInterval=1,
            recoverBlocks=30,
        )
        self.ports = MemoryPorts(self.chain, "ann")
        self.rules = FlatRules(RECIPE, gain=1)
        self.trace = Trace(home / "trace.jsonl")
        self.watcher = Watcher(self.ports, self.run, self.ports.address)
        self.source = PayloadSource(home / "payloads", self.ports, self.trace)
        self.agreement = Agreement(
            chain=self.ports,
            rules=self.rules,
            source=self.source,
            trace=self.trace,
            run=self.run,
            me=self.ports.address,
            state=ToyState(),
            version=0,
        )
        self.duties = Duties(
            Parts(
                chain=self.ports,
                sender=self.ports,
                payloads=self.ports,
                rules=self.rules,
                trace=self.trace,
                run=self.run,
                evaluation_interval=0,
            )
        )
        self.journal = Journal(home, JournalContents(genesis_hash="", run=self.run, recipe_digest=""))
        self.engine = self.rules.create_engine(ToyState(), 0)
        join_run(self.ports, self.look(), self.rules.recipe_digest)

    def look(self) -> Any:
        self.chain.inner.advance()
        return self.watcher.look()

    def go(self, version: int) -> None:
        """Let the run certify a version."""
        while self.step().run.certified_version < version:
            pass

    def go_to_head(self, version: int) -> None:
        """Let the run settle a version."""
        while self.step().run.head_version < version or self.agreement.version < version:
            pass

    def step(self) -> Any:
        """Do what is due at a block."""
        view = self.look()
        self.agreement.adopt(view)
        self.duties.keep_ready(view, self.agreement)
        for t, info in view.rounds.items():
            if info.state is RoundState.OPEN and self.engine.version == t and t not in self.engine.in_flight:
                self.send(t, info)
        self.duties.attest(view, self.agreement)
        self.duties.store_checkpoint(view, self.agreement)
        for outcome in self.agreement.take_outcomes(self.engine.version, self.agreement.version):
            self.engine.apply(outcome.settlement, outcome.round, True)
        return view

    def send(self, t: int, info: Any) -> None:
        """Make an update durable as a worker does, and commit it."""
        payload = self.engine.send(t, rank=info.rank)
        digest = compute_digest(payload)
        update = SentUpdate(
            round=t, base_root=info.base_root.hex(), digest=digest.hex(), payload_file=str(t), tokens=1, loss_micro=1
        )
        self.journal.record_state(
            self.engine.save,
            name=f"sent-{t}",
            change=lambda contents: JournalContents(
                genesis_hash="", run=self.run, recipe_digest="", last_sent_round=t, sent=(update,)
            ),
            payload=(str(t), payload),
        )
        certificate = self.ports.put(payload, tier=0, blocks=2_000)
        self.ports.send("commit", self.run, t, info.base_root, digest, certificate, 1, 1)


@pytest.mark.parametrize("last", [200, pytest.param(1_500, marks=pytest.mark.soak)])
def test_nothing_grows_over_many_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: int) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)  # what is counted is what is left, not what outlives a power cut
    monkeypatch.setattr("training.worker.trace.MAX_FILE_BYTES", 5_000)
    life = Life(tmp_path, last)
    process, counts = psutil.Process(), []
    try:
        for version in (FIRST, last):
            life.go(version)
            held = {
                name: len(value)
                for part in (life.agreement, life.duties, life.source, life.watcher)
                for name, value in vars(part).items()
                if isinstance(value, (dict, list, set))
            }
            gc.collect()
            files = [path for path in tmp_path.rglob("*") if path.is_file()]
            counts.append((held, len(files), process.num_fds(), threading.active_count()))
            assert sum(path.stat().st_size for path in files) < 20_000
        assert counts[0] == counts[1]
        restored, version = restore_newest(
            chain=life.ports, payloads=life.ports, rules=life.rules, trace=life.trace, run=life.watcher.look().run
        )
        assert version == last, "the newest, not the last of a list"
        assert restored.root() == life.ports.training.root(life.run, last)
    finally:
        life.source.close()
        life.trace.close()


def test_a_checkpoint_without_all_its_parts_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader sees parts appear one by one: only the last one makes them a checkpoint."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    life = Life(tmp_path, 20)
    try:
        life.go(8)
        monkeypatch.setattr(life.duties, "store_checkpoint", lambda *_: False)
        life.go_to_head(9)
        view = life.look()
        part = life.agreement.get_state()[0].encode_part(0, view.run.params.num_checkpoint_parts)
        life.chain.inner.advance(view.run.params.grace_blocks)
        life.ports.send("checkpoint", life.run, 9, 0, life.ports.put(part, tier=1, blocks=2_000))
        assert any(life.ports.training.checkpoint_at(life.run, 9).blobs)
        assert life.watcher.look().run.certified_version == 8
        _, version = restore_newest(
            chain=life.ports, payloads=life.ports, rules=life.rules, trace=life.trace, run=life.watcher.look().run
        )
        assert version == 8
    finally:
        life.source.close()
        life.trace.close()


def test_a_pause_loses_no_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores that take nothing while the run is paused: nothing is certified, nothing released, and later all is there.

    The run stands on the certified version and what has settled since, so a newcomer has the head at every moment (case
    11).
    """
    monkeypatch.setattr(os, "fsync", lambda _: None)
    life = Life(tmp_path, 20)
    put, keep = life.ports.put, {"is_down": False}

    def put_if_up(data: bytes, *, tier: int, blocks: int) -> bytes:
        if keep["is_down"] and tier == HOT_TIER:
            raise PayloadUnavailable(bytes(32), "no store answers")
        return bytes(put(data, tier=tier, blocks=blocks))

    monkeypatch.setattr(life.ports, "put", put_if_up)
    try:
        life.go(6)
        keep["is_down"] = True
        life.go_to_head(9)
        with life.chain.lock:
            life.chain.inner.call("Training", "pause", life.run, sender="owner")
        for _ in range(40):
            life.step()
        run = life.watcher.look().run
        assert (run.state, run.certified_version) == (RunState.PAUSED, 6)
        state, version = restore_newest(
            chain=life.ports, payloads=life.ports, rules=life.rules, trace=life.trace, run=run
        )
        assert version == 6
        head = life.agreement.replay(state, version, run.head_version)
        assert head.root() == run.head_root, "every payload since is still there"
        keep["is_down"] = False
        for _ in range(40):
            life.step()
        assert life.watcher.look().run.certified_version == run.head_version, "made good while the run is paused"
    finally:
        life.source.close()
        life.trace.close()
