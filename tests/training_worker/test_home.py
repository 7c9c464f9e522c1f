"""A home whose files were altered, that is another key's, or that can't be written: named, and nothing lost by it."""

from __future__ import annotations

import errno
import json
import os
import tempfile
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch

from contracts.bindings.types import UpdateFate
from training.worker.errors import EXIT_FATAL, Fatal, HomeUnusable, WorkerStateDamaged, WrongMember
from training.worker.journal import Journal, JournalContents, SentUpdate, load_journal
from training.worker.loop import LoopEnd, Patience
from training.worker.opening import check_not_ahead, check_usable, open_journal
from training.worker.outbox import Outbox
from training.worker.process import JoinConfig, hold_home, join_and_train
from training.worker.session import _find_own
from training.worker.source import compute_digest
from training.worker.trace import Trace
from training.worker.watcher import Watcher
from training.worker_file import write_worker_file

PAYLOAD = b"what was learned"
ROUND = 3
GENESIS_HASH = b"\xaa" * 32
MINE, OTHER = "0x" + "11" * 20, "0x" + "22" * 20


class Crash(BaseException):
    """What ends the process."""


def flip_a_bit(path: Path) -> None:
    """As a disk does that forgets: the length stays."""
    body = bytearray(path.read_bytes())
    body[len(body) // 2] ^= 1
    path.write_bytes(body)


def read_all(home: Path) -> dict[str, bytes]:
    return {str(path.relative_to(home)): path.read_bytes() for path in home.rglob("*") if path.is_file()}


def make_update() -> SentUpdate:
    digest = compute_digest(PAYLOAD).hex()
    return SentUpdate(
        round=0, base_root="00" * 32, digest=digest, payload_file=f"0-{digest}", tokens=1, loss_micro=1, blob="bb" * 32
    )


def make_journal(home: Path, run: int = 1, **fields: Any) -> Journal:
    """A journal with a state and an open update, written down."""
    update = make_update()
    journal = Journal(
        home,
        JournalContents(genesis_hash=GENESIS_HASH.hex(), run=run, recipe_digest="00" * 32, sent=(update,), **fields),
    )
    home.mkdir(exist_ok=True)
    journal.record_state(
        lambda path: path.write_bytes(b"state") and None,
        name="saved",
        change=lambda contents: contents,
        payload=(update.payload_file, PAYLOAD),
    )
    return journal


# Own payloads


@pytest.mark.parametrize("moment", ["before put", "after broadcast"])
@pytest.mark.parametrize("damage", ["flipped", "gone"])
def test_an_own_payload_that_the_disk_lost_comes_from_the_saved_state(
    net: Any, caplog: Any, moment: str, damage: str
) -> None:
    """One flipped bit made an honest worker refuse its own update, or disperse other bytes under its digest."""
    net.create_run(minMembers=2, roundBlocks=200)
    ann, bob = net.worker("ann"), net.worker("bob")
    crashed: list[str] = []

    def crash(*_: str) -> None:
        if not crashed and (ann.engine.sent.get(ROUND) is not None or ann.engine.version > ROUND):
            crashed.append(moment)
            raise Crash

    setattr(ann.ports, "before_put" if moment == "before put" else "after_broadcast", crash)
    ann.start()
    bob.start()
    ann.join()
    assert isinstance(ann.error, Crash)
    lost = list((ann.home / "sent").iterdir())
    assert lost
    for path in lost:
        if damage == "gone":
            path.unlink()
        else:
            flip_a_bit(path)
    with caplog.at_level("INFO", logger="trainer"):
        ann.start().join()
        bob.join()
    assert (ann.error, bob.error) == (None, None)
    info = net.info()
    fates = [
        net.chain.read("Training", "update", (net.run, t, ann.ports.address)).fate for t in range(info.num_settled)
    ]
    assert fates == [UpdateFate.ACCEPTED] * info.num_rounds_total
    assert ann.summary.root == bob.summary.root == info.head_root.hex()
    assert ann.engine.canonical.theta % 100 == ann.rules.steps * info.params.num_rounds, "each step once"
    assert caplog.text.count("written anew") == len(lost)
    assert caplog.text.count("was altered on the disk") == (len(lost) if damage == "flipped" else 0)


def test_an_altered_payload_is_never_dispersed(net: Any, tmp_path: Path) -> None:
    net.create_run()
    ports = net.worker("ann").ports
    journal = make_journal(tmp_path / "home", net.run)
    flip_a_bit(journal.sent_folder / make_update().payload_file)
    trace = Trace(tmp_path / "trace.jsonl")
    view = Watcher(ports, net.run, ports.address).look()
    outbox = Outbox(
        chain=ports, sender=ports, payloads=ports, journal=journal, trace=trace, run=net.run, get_view=lambda: view
    )
    before = dict(net.chain.blobs)
    outbox.work()
    assert outbox.work(), "nothing is left to do"
    assert "gone from the disk" in journal.contents.sent[0].note
    assert net.chain.blobs == before
    trace.close()


def test_an_altered_payload_is_set_aside_once_and_left_to_the_stores(tmp_path: Path, caplog: Any) -> None:
    journal = make_journal(tmp_path)
    update = make_update()
    path = journal.sent_folder / update.payload_file
    blob = bytes.fromhex(update.blob)
    assert _find_own(journal, blob) == PAYLOAD
    flip_a_bit(path)
    altered = path.read_bytes()
    with caplog.at_level("WARNING", logger="trainer"):
        assert [_find_own(journal, blob) for _ in range(3)] == [None] * 3
    (said,) = caplog.messages
    assert str(path) in said
    assert update.digest in said
    assert compute_digest(altered).hex() in said
    assert path.with_name(f"{path.name}.altered").read_bytes() == altered


# Another key's home


def test_a_home_of_another_key_is_refused_before_the_bond_and_left_as_it_is(net: Any) -> None:
    net.create_run(minMembers=1, numRounds=8, roundBlocks=400)
    ann = net.worker("ann", steps=20, step_seconds=0.02)
    ann.start()
    net.wait_for(lambda: net.info().num_settled >= 1)
    ann.halt()
    before = {name: body for name, body in read_all(ann.home).items() if name != "trace.jsonl"}
    assert any(name.startswith("state/") for name in before)
    bob = net.worker("bob", home="ann")
    bob.start().join()
    assert isinstance(bob.error, WrongMember)
    assert bob.error.exit_code == EXIT_FATAL
    assert ann.ports.address in bob.error.message
    assert bob.ports.address in bob.error.message
    assert [name for name, _, _ in net.chain.sends if name == "bob"] == []
    assert {name: body for name, body in read_all(ann.home).items() if name != "trace.jsonl"} == before
    net.workers.remove(bob)
    ann.rules.pause.clear()
    ann.start()
    net.wait_for(lambda: len(ann.rules.engines) == 2)
    assert ann.error is None, "its own key goes on"
    ann.halt()


def make_run() -> Any:
    params = SimpleNamespace(overlap=1, is_sealed=False)
    return SimpleNamespace(run=1, recipe_digest=bytes(32), params=params, num_opened=5, state=2)


@pytest.mark.parametrize("whose", [MINE, OTHER, None], ids=["mine", "another's", "no state"])
def test_a_journal_from_before_members_were_written_down_goes_by_its_state(tmp_path: Path, whose: str | None) -> None:
    journal = make_journal(tmp_path)
    raw = json.loads((tmp_path / "journal.json").read_text())
    del raw["member"]
    if whose is None:
        raw["state_file"] = ""
    else:
        about = json.dumps({"version": 0, "member": whose[2:]}).encode()
        tensors = {"about": torch.from_numpy(numpy.frombuffer(about, dtype=numpy.uint8).copy()), "x": torch.ones(9)}
        write_worker_file(journal.state_folder / "saved", tensors)
    (tmp_path / "journal.json").write_text(json.dumps(raw))
    before = read_all(tmp_path)
    if whose == OTHER:
        with pytest.raises(WrongMember, match=OTHER):
            open_journal(tmp_path, GENESIS_HASH, make_run(), MINE)
    else:
        opened = open_journal(tmp_path, GENESIS_HASH, make_run(), MINE)
        assert opened.contents.member == MINE
    assert read_all(tmp_path) == before, "looked at, not written"


def test_who_the_home_belongs_to_outlives_a_reset(tmp_path: Path) -> None:
    make_journal(tmp_path, member=OTHER).reset()
    with pytest.raises(WrongMember):
        open_journal(tmp_path, GENESIS_HASH, make_run(), MINE)


class Chain:
    """What `join_and_train` asks a chain before it joins; anything after is a failure."""

    def __init__(self, _urls: object) -> None:
        self.training = self

    def __enter__(self) -> Chain:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def run(self, _number: int) -> Any:
        return make_run()

    def genesis_hash(self) -> bytes:
        return GENESIS_HASH


def make_config(home: Path) -> JoinConfig:
    return JoinConfig(
        chain_urls=("http://127.0.0.1:1",),
        run=1,
        private_key=b"\x01" * 32,
        home=home,
        data_file=None,
        num_threads=0,
        device="cpu",
        evaluation_interval=0,
        patience=Patience(chain_seconds=1.0, first_contact_seconds=1.0),
    )


def test_a_start_in_another_key_s_home_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    monkeypatch.setattr("training.worker.process.ChainClient", Chain)
    home = tmp_path / "home"
    make_journal(home, member=OTHER)
    (home / "lock").touch()
    before = read_all(home)
    with pytest.raises(WrongMember):
        join_and_train(make_config(home), threading.Event())
    assert read_all(home) == before


# A home that can't be written


@pytest.mark.parametrize("name", ["state", "sent", "payloads"])
def test_a_file_where_a_folder_belongs_is_named_before_the_chain_is_asked(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    with pytest.raises(HomeUnusable) as raised:
        join_and_train(make_config(tmp_path), threading.Event())
    assert raised.value.exit_code == EXIT_FATAL
    assert str(tmp_path / name) in raised.value.message
    assert "another --home" in raised.value.next_step


@pytest.mark.parametrize("name", ["", "state", "sent", "payloads"])
@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_a_folder_that_takes_no_file_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, number: int
) -> None:
    make_journal(tmp_path)
    (tmp_path / "payloads").mkdir()
    probe, refused = tempfile.TemporaryFile, tmp_path / name

    def probing(*, dir: Path) -> Any:
        if dir == refused:
            raise OSError(number, os.strerror(number), str(dir))
        return probe(dir=dir)

    monkeypatch.setattr("training.worker.opening.tempfile.TemporaryFile", probing)
    before = read_all(tmp_path)
    with pytest.raises(HomeUnusable, match=os.strerror(number)) as raised, hold_home(tmp_path):
        raise AssertionError("held")
    assert raised.value.message.startswith(f"{refused} ")
    assert {path: body for path, body in read_all(tmp_path).items() if path != "lock"} == before


def test_a_full_disk_is_no_reason_to_refuse_a_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*, dir: Path) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(dir))

    monkeypatch.setattr("training.worker.opening.tempfile.TemporaryFile", full)
    check_usable(tmp_path)


@pytest.mark.parametrize("name", ["lock", "trace.jsonl", "metrics.jsonl", "state/saved"])
def test_what_is_no_file_in_a_home_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).mkdir()
    with pytest.raises(HomeUnusable) as raised, hold_home(tmp_path):
        raise AssertionError("held")
    assert str(tmp_path / name) in raised.value.message


def test_a_pipe_in_a_home_holds_nobody_up(tmp_path: Path) -> None:
    (tmp_path / "sent").mkdir()
    os.mkfifo(tmp_path / "sent" / "pipe")
    with pytest.raises(Fatal, match="no file"):
        check_usable(tmp_path)


def test_a_whole_home_is_left_as_it_was(tmp_path: Path) -> None:
    make_journal(tmp_path)
    before = read_all(tmp_path)
    check_usable(tmp_path)
    assert read_all(tmp_path) == before


# A journal ahead of the chain


@pytest.mark.parametrize("field", ["last_sent_round", "trained_round", "sent"])
def test_a_journal_that_is_ahead_of_the_chain_is_named_as_damaged(net: Any, field: str) -> None:
    """It was believed: the worker waited for rounds to come, was dropped and never trained."""
    net.create_run(minMembers=1, numRounds=40, roundBlocks=400)
    ann = net.worker("ann", steps=4, step_seconds=0.02)
    ann.start()
    net.wait_for(lambda: net.info().num_settled >= 2)
    ann.halt()
    path = ann.home / "journal.json"
    raw = json.loads(path.read_text())
    if field == "sent":
        sent = make_update()
        raw["sent"].append({name: getattr(sent, name) for name in SentUpdate.__slots__} | {"round": 10**9})
    else:
        raw[field] = 10**9
    path.write_text(json.dumps(raw))
    before = read_all(ann.home)
    ann.start().join()
    assert isinstance(ann.error, WorkerStateDamaged)
    assert str(path) in ann.error.message
    assert "1000000000" in ann.error.message
    assert f"opened {net.info().num_opened} " in ann.error.message
    assert f"move {path} away" in ann.error.next_step
    assert {**read_all(ann.home), "trace.jsonl": b""} == {**before, "trace.jsonl": b""}, "kept as evidence"
    path.unlink()
    ann.rules.pause.clear()
    ann.start()
    net.wait_for(lambda: net.info().num_settled >= net.info().num_opened - 1 > len(raw["sent"]))
    ann.halt()
    assert ann.error is None
    assert ann.summary.end is LoopEnd.STOPPED
    assert load_journal(ann.home) is not None


@pytest.mark.parametrize(("newest", "is_taken"), [(4, True), (6, True), (7, False)])
def test_a_journal_may_be_ahead_by_what_a_run_that_went_back_explains(
    tmp_path: Path, newest: int, is_taken: bool
) -> None:
    """State of version 5, rounds 5 and 6 sent with overlap 1, and the run goes back to version 5."""
    journal = make_journal(tmp_path, last_sent_round=newest)
    if is_taken:
        check_not_ahead(journal, make_run())
    else:
        with pytest.raises(WorkerStateDamaged, match="last_sent_round names round 7, the run has opened 5"):
            check_not_ahead(journal, make_run())
