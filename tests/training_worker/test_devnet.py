"""Worker processes on the real chain and the real stores, as people start them (cases 1, 3, 5, 7, 25, 26, 27, 77).

One devnet and one run serve the whole story, told in order: each test leaves the run where the next one takes
it up.  ``pytest -k`` of a later test alone runs the earlier ones' set-up through the ``story`` fixture.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import pytest
from training_worker_devnet import STOP_SECONDS, WAIT_SECONDS, Devnet, open_devnet, run_trainer
from training_worker_tiny_recipe import make_recipe

from contracts.bindings.encoding import load_abi, selector_of
from contracts.bindings.types import MemberState, RoundState, RunState, UpdateFate
from training.core.recipe_text import parse_recipe
from training.core.schedule import learning_rate
from training.worker.trace import EventKind, load_trace

pytestmark = pytest.mark.integration

RECIPE = make_recipe("story", 11, rounds={"local_steps": 160, "num_rounds": 400})
"""Tiny, with enough inner steps that a worker can be killed in the middle of them."""


CUT_SECONDS = 12.0
"""Without a connection: eighty looks of the watcher, two deadlines of the client (5 s), a round and its votes."""
ACTS = {"commit": 2, "attest": 3, "reportMissing": 3, "recordEvaluation": 2, "checkpoint": 3}
"""What a worker does once for each value of so many first arguments."""


class Proxy:
    """A TCP proxy in front of the JSON-RPC port; ``cut`` makes the chain disappear for whoever uses it."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._is_cut = False
        self._fatal_word = b""
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.is_silent = False
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        with self._lock:
            self._is_cut = True
            self._close_all()

    def cut_after(self, word: bytes) -> None:
        """Let the next request with ``word`` through, and from then on nothing, in either direction, on any socket."""
        with self._lock:
            self._fatal_word = word

    def heal(self) -> None:
        with self._lock:
            if self.is_silent:
                self._close_all()  # what was lost in between doesn't come later
            self._is_cut = self.is_silent = False

    def close(self) -> None:
        self._listener.close()
        self.cut()

    def _close_all(self) -> None:
        for connection in self._open:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)  # a close alone wakes no thread that reads
            connection.close()
        self._open.clear()

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
                self._open.add(client)
                if self.is_silent:
                    continue
                server = socket.create_connection(("127.0.0.1", self._target))
                self._open.add(server)
            for source, sink, is_asking in ((client, server, True), (server, client, False)):
                threading.Thread(target=self._pump, args=(source, sink, is_asking), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, is_asking: bool) -> None:
        try:
            while data := source.recv(65_536):
                with self._lock:
                    is_lost = self.is_silent
                    if is_asking and not is_lost and self._fatal_word and self._fatal_word in data:
                        self.is_silent, self._fatal_word = True, b""
                if not is_lost:
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
            found.create_run(RECIPE, "--reward", "0.05", "--bond", "2", "--lock-seconds", "3")
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


def test_a_connection_cut_for_rounds_as_a_transaction_goes_out_sends_nothing_twice(story: Story) -> None:
    """CASES 26: no socket is closed, nothing comes back; the first answer that is lost is a transaction's.

    Its thirty seconds are CUT_SECONDS here.  That blocks full of others' transactions are caught up with is shown in
    test_watcher.py, where blocks are made by hand.
    """
    ann, proxy = story.workers["ann"], story.proxy
    already_said = len(ann.log)
    proxy.cut_after(b"eth_sendRawTransaction")
    story.wait_for(lambda: proxy.is_silent, "ann sends a transaction")
    began, settled = time.monotonic(), story.info().num_settled
    story.wait_for(
        lambda: time.monotonic() > began + CUT_SECONDS and story.info().num_settled > settled,
        "the run goes on while ann hears nothing",
    )
    assert "no answer" in ann.log[already_said:]
    assert ann.process is not None
    assert ann.process.poll() is None
    opened = story.info().num_opened
    proxy.heal()
    story.wait_for_counted("ann", opened)
    assert "answers again at block" in ann.log[already_said:]
    story.wait_for(lambda: _find_votes(story, "ann", opened), "ann votes again")
    assert all(vote == root for vote, root in _find_votes(story, "ann", opened))
    acts = _count_acts(story, "ann")
    assert {act for act, *_ in acts} >= {"commit", "attest"}
    assert {act: count for act, count in acts.items() if count > 1} == {}, "sent twice"


def _find_votes(story: Story, name: str, first_round: int) -> list[tuple[bytes, bytes]]:
    """Return (a worker's vote, the root that was agreed on) of the rounds since then that are FINAL."""
    found = []
    for t in range(first_round, story.info().num_settled):
        info = story.client.training.round(1, t)
        votes = {vote.member: vote.root for vote in story.client.training.votes(1, t)}
        if info.state is RoundState.FINAL and story.workers[name].address in votes:
            found.append((votes[story.workers[name].address], info.root))
    return found


def _count_acts(story: Story, name: str) -> Counter[tuple[str, ...]]:
    """Count what a worker has sent, by function and first arguments, out of all blocks; refused ones count."""
    by_selector = {selector_of(entry).hex(): entry["name"] for entry in load_abi("Training") if "inputs" in entry}
    found: Counter[tuple[str, ...]] = Counter()
    for height in range(1, story.client.height() + 1):
        for sent in story.client.request("eth_getBlockByNumber", hex(height), True)["transactions"]:
            data = sent["input"].removeprefix("0x")
            act = by_selector.get(data[:8], "")
            if sent["from"].lower() == story.workers[name].address.lower() and act in ACTS:
                found[(act, *(data[8 + 64 * index : 72 + 64 * index] for index in range(ACTS[act])))] += 1
    return found


def test_sigterm_saves_and_ends_with_zero_within_ten_seconds(story: Story) -> None:
    ann = story.workers["ann"]
    began = time.monotonic()
    assert ann.kill(signal.SIGTERM) == 0, ann.log
    assert time.monotonic() - began < STOP_SECONDS
    assert (ann.home / "journal.json").exists()
    assert story.member("ann").state in (MemberState.READY, MemberState.ACTIVE), "the membership is kept"


def test_who_leaves_is_out_at_once_and_may_join_again(story: Story) -> None:
    ann = story.workers["ann"]
    leave = ("leave", "--run", 1, "--chain", story.url, "--key-file", ann.key_file)
    num_members = story.info().num_members
    said = run_trainer(*leave).splitlines()
    after = story.member("ann")
    assert (after.state, after.bond) == (MemberState.LEFT, 2 * 10**18)
    assert story.info().num_members == num_members - 1
    left = re.fullmatch(r"left run 1 in block (\d+); the bond of 2 tokens is free (.*)", said[0])
    assert left is not None, said
    free = re.fullmatch(
        r"from block (\d+), (in about \d+ s|now)|\d+ blocks \(about \d+ s\) after the rounds .*", left[2]
    )
    assert free is not None, said
    assert free[1] is None or int(left[1]) < int(free[1]) <= int(left[1]) + story.info().params.lock_blocks
    assert said[1:] == [f"next:  trainer leave --run 1 --key-file {ann.key_file} --chain {story.url} --withdraw"]
    refused = run_trainer(*leave, code=2)
    assert f"NotMember: run 1, got {ann.address}" in refused.replace("\n", "")
    assert "next:  join the run first with `trainer join`" in refused
    already_said, opened = len(ann.log), story.info().num_opened
    ann.start()
    story.wait_for_counted("ann", opened)
    assert f"joined run 1 as {ann.address}" in ann.log[already_said:]
    assert story.member("ann").bond == 2 * 10**18, "the bond that was held is the bond"
    assert ann.kill(signal.SIGTERM) == 0, ann.log


def test_the_logged_rates_follow_the_schedule_across_restarts(story: Story) -> None:
    """CASES 5, of the workers themselves: rates are logged with the step that they are of, once a round and when saved.

    A rate is a function of its step alone (test_schedule.py hears each), so what lies between two lines is no guess.
    """
    recipe = parse_recipe(RECIPE)
    for worker in story.workers.values():
        whole, _, _ = (worker.home / "metrics.jsonl").read_text().rpartition("\n")  # bob is writing
        rows = [json.loads(line) for line in whole.splitlines()]
        assert worker.log.count("loading torch") > 1, "no restart"
        assert all(after["_step"] >= before["_step"] for before, after in pairwise(rows)), "a restart goes on"
        logged = [(row["_step"], row["train/rate"]) for row in rows if "train/rate" in row]
        assert len(logged) > 2
        for step, rate in logged:
            assert rate == pytest.approx(learning_rate(recipe.inner, recipe.rounds, step - 1), abs=1e-9), step


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
            code = worker.process.wait(WAIT_SECONDS)
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


def test_a_bond_is_taken_back_once_it_is_free(story: Story) -> None:
    """Of a run that has finished, too; then there is nothing to join and nothing more to take."""
    bob = story.workers["bob"]
    arguments = ("--run", 1, "--chain", story.url, "--key-file", bob.key_file)
    refused = run_trainer("leave", *arguments, "--withdraw", code=2)
    assert f"{bob.address} is {story.member('bob').state.name} in run 1, expected LEFT" in refused
    assert f"next:  trainer leave --run 1 --key-file {bob.key_file} --chain {story.url}" in refused.splitlines()
    left = json.loads(run_trainer("leave", *arguments, "--json"))
    until = left["member"]["bond_unlock_height"]
    assert until == left["height"] + story.info().params.lock_blocks
    story.wait_for(lambda: story.client.height() >= until, "the lock is over")
    before = story.client.balance(bob.address)
    assert "bond of 2 tokens withdrawn in block" in run_trainer("leave", *arguments, "--withdraw")
    assert before + 19 * 10**17 < story.client.balance(bob.address) < before + 2 * 10**18, "all but the fee"
    assert "NothingToWithdraw" in run_trainer("leave", *arguments, "--withdraw", code=2)
    bob.start()
    assert bob.process is not None
    assert bob.process.wait(WAIT_SECONDS) == 2
    assert bob.log.endswith("error: run 1 has finished\nnext:  take its model: trainer checkpoint pull --run 1\n")


def test_rounds_of_the_run_are_explained_long_after(story: Story) -> None:
    """`data explain` on the real chain; tests/rpc/test_archives.py has a node that doesn't have the round any more."""
    training = story.client.training
    ask = ("data", "explain", "--run", 1, "--chain", story.url, "--json", "--samples", 40)
    shared = [t for t in range(story.info().num_settled) if len(training.participants(1, t)) == 2]
    for t in (shared[0], shared[-1]):
        ann, bob = (
            json.loads(run_trainer(*ask, "--round", t, "--member", story.workers[name].address))
            for name in ("ann", "bob")
        )
        assert ann["data_seed"] == bob["data_seed"] == training.round(1, t).data_seed.hex()
        assert ann["num_members"] == bob["num_members"] == 2
        assert not set(ann["starts"]) & set(bob["starts"])
    assert story.owner is not None
    refused = run_trainer(*ask, "--round", shared[0], "--member", story.owner.address, code=2)
    assert f"is no participant of round {shared[0]} of run 1; its 2 are 0x" in refused


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
