"""Worker processes on the real chain and the real stores, as people start them (cases 1, 3, 7, 25, 27, 77).

One devnet and one run serve the whole story, told in order: each test leaves the run where the next one takes
it up.  ``pytest -k`` of a later test alone runs the earlier ones' set-up through the ``story`` fixture.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from training_worker_devnet import STOP_SECONDS, Devnet, open_devnet, run_trainer
from training_worker_tiny_recipe import make_recipe

from contracts.bindings.types import MemberState, RoundState, RunState, UpdateFate
from training.worker.trace import EventKind, load_trace

pytestmark = pytest.mark.integration

RECIPE = make_recipe("story", 11, rounds={"local_steps": 160, "num_rounds": 400})
"""Tiny, with enough inner steps that a worker can be killed in the middle of them."""


class Proxy:
    """A TCP proxy in front of the JSON-RPC port; ``cut`` makes the chain disappear for whoever uses it."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._is_cut = False
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        with self._lock:
            self._is_cut = True
            for connection in self._open:
                connection.close()
            self._open.clear()

    def heal(self) -> None:
        with self._lock:
            self._is_cut = False

    def close(self) -> None:
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                if self._is_cut:
                    client.close()
                    continue
                server = socket.create_connection(("127.0.0.1", self._target))
                self._open |= {client, server}
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65_536):
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            with self._lock:
                self._open.discard(end)
            end.close()


@dataclass(kw_only=True)
class Story(Devnet):
    """The devnet, the run and its workers, one of them behind a proxy."""

    proxy: Proxy


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    proxies: list[Proxy] = []

    def create(*, url: str, **parts: Any) -> Story:
        proxies.append(Proxy(int(url.rsplit(":", 1)[1])))
        return Story(url=url, proxy=proxies[0], **parts)

    try:
        with open_devnet(tmp_path_factory.mktemp("story"), ("ann", "bob"), create) as found:
            found.workers["ann"].url = found.proxy.url
            found.create_run(RECIPE, "--reward", "0.05", "--bond", "2")
            for worker in found.workers.values():
                worker.start()
            yield found
    finally:
        for proxy in proxies:
            proxy.close()


def test_a_worker_killed_in_the_middle_of_a_round_comes_back_by_itself(story: Story) -> None:
    bob = story.workers["bob"]
    story.wait_for(lambda: story.info().num_settled >= 3 and story.member("bob").accepted >= 2, "the run has begun")
    assert bob.kill() == -signal.SIGKILL
    settled = story.info().num_settled
    story.wait_for(lambda: story.info().num_settled >= settled + 1, "the run goes on without bob")
    opened = story.info().num_opened
    bob.start()
    story.wait_for_counted("bob", opened)
    assert "resumed at version" in bob.log


def test_a_chain_that_goes_away_in_the_middle_costs_no_update(story: Story) -> None:
    before = story.member("ann").accepted
    story.proxy.cut()
    ann = story.workers["ann"]
    story.wait_for(lambda: "no answer" in ann.log, "ann notices", 30)
    story.proxy.heal()
    story.wait_for(lambda: story.member("ann").accepted >= before + 2, "ann's updates count again")
    assert ann.process is not None
    assert ann.process.poll() is None


def test_sigterm_saves_and_ends_with_zero_within_ten_seconds(story: Story) -> None:
    ann = story.workers["ann"]
    began = time.monotonic()
    assert ann.kill(signal.SIGTERM) == 0, ann.log
    assert time.monotonic() - began < STOP_SECONDS
    assert (ann.home / "journal.json").exists()
    assert story.member("ann").state in (MemberState.READY, MemberState.ACTIVE), "the membership is kept"


def test_with_all_disks_gone_chain_and_stores_alone_give_the_state_back(story: Story) -> None:
    ann, bob = story.workers["ann"], story.workers["bob"]
    bob.kill()
    info = story.info()
    for worker in (ann, bob):
        shutil.rmtree(worker.home)
    already_said = len(bob.log)
    bob.start()
    # Below two members an update is FINAL by its own vote alone, and only over the root agreed on with others before.
    story.wait_for_counted("bob", info.num_opened)
    said = bob.log[already_said:]
    (version, root) = re.findall(r"caught up with version (\d+), root (\w+)", said)[0]
    assert int(version) >= info.num_settled - 1
    assert story.client.training.root(1, int(version)).hex().startswith(root)
    assert story.client.training.root(1, info.head_version) == info.head_root, "nothing was undone"
    ann.start()


def test_the_run_finishes_with_one_root_and_every_process_ends_well(story: Story) -> None:
    story.wait_for_counted("ann", story.info().num_opened)
    # The owner shortens the run: the rounds after the next few only flush.
    assert story.owner is not None
    info = story.info()
    story.owner.send("Training", "setParams", 1, replace(info.params, num_rounds=info.num_opened + 3))
    for worker in story.workers.values():
        assert worker.process is not None
        try:
            code = worker.process.wait(90)
        except subprocess.TimeoutExpired:
            pytest.fail(f"{worker.name} did not end: {story.info()}\n{worker.log[-3000:]}")
        assert code == 0, worker.log
    info = story.info()
    assert info.state is RunState.FINISHED
    assert info.certified_version == info.num_rounds_total
    for worker in story.workers.values():
        assert info.head_root.hex() in worker.log.replace("\n", ""), "both end with the agreed root"
    for name in story.workers:
        member = story.member(name)
        fates = story.fates(name)
        assert member.accepted == fates.count(UpdateFate.ACCEPTED), "each update counted once"
        assert member.earned == member.accepted * 5 * 10**16
    states = {story.client.training.round(1, t).state for t in range(info.num_settled)}
    assert states <= {RoundState.FINAL, RoundState.VOID}


def test_status_says_whether_the_last_update_counted(story: Story) -> None:
    said = json.loads(
        run_trainer("status", "--run", 1, "--chain", story.url, "--key-file", story.folder / "ann.key", "--json")
    )
    assert said["last_update"]["update"]["fate"] == "ACCEPTED"
    assert said["last_update"]["verdict"].startswith("counted")


def test_status_is_proved_by_the_validators_signatures(story: Story) -> None:
    key = story.folder / "ann.key"
    arguments = ("--run", 1, "--chain", story.url, "--key-file", key, "--verify")
    document = json.loads(run_trainer("status", *arguments, "--json"))
    verified = document["verified"]
    assert verified["head_version"] == document["run"]["num_settled"]
    assert bytes.fromhex(verified["head_root"]).hex() in json.dumps(document["run"])
    assert verified["accepted"] == document["member"]["accepted"]
    assert verified["num_validators"] == 1
    assert "these nodes' word" in run_trainer("status", *arguments)


def test_the_pulled_checkpoint_is_the_agreed_state(story: Story) -> None:
    out = story.folder / "model"
    pulled = json.loads(run_trainer("checkpoint", "pull", "--run", 1, "--chain", story.url, "--out", out, "--json"))
    info = story.info()
    assert pulled["version"] == info.num_rounds_total
    assert bytes.fromhex(pulled["root"]) == info.head_root
    evaluated = json.loads(run_trainer("evaluate", out, "--json"))
    recorded = {item.version: item.loss_micro for item in story.client.training.evaluations(1, 0, 256)}
    assert evaluated["loss_micro"] == recorded[info.num_rounds_total], "the loss of the agreed theta, bit for bit"
    assert recorded[info.num_rounds_total] < recorded[0], "it has learned"
    assert len(json.loads(run_trainer("generate", out, "--length", 8, "--json"))["text"]) > 0
    assert "exists already" in run_trainer(
        *("checkpoint", "pull", "--run", 1, "--chain", story.url, "--out", out), code=2
    )


def test_the_trace_tells_the_bytes_at_the_sockets(story: Story) -> None:
    events = load_trace(story.workers["ann"].home / "trace.jsonl")
    traffic = [event.counters for event in events if event.kind is EventKind.TRAFFIC]
    assert traffic[-1]["payload_sent"] > 0
    assert traffic[-1]["rpc_received"] > 0
    assert {EventKind.TRAIN, EventKind.SETTLE, EventKind.ATTEST, EventKind.COMMIT} <= {event.kind for event in events}
