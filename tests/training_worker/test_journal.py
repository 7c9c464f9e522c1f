"""The journal of a worker's home: one step at a time, damage named, homes told apart (cases 25, 77)."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from training_worker_views import ME, make_view

from training.worker.errors import Fatal, WorkerStateDamaged, WrongChain, WrongRun
from training.worker.journal import Journal, JournalContents, SentUpdate, load_journal
from training.worker.opening import open_journal
from training.worker.process import hold_home
from training.worker.source import compute_digest


def make_journal(home: Path) -> Journal:
    home.mkdir(exist_ok=True)
    return Journal(home, JournalContents(genesis_hash="aa" * 32, run=1, recipe_digest="bb" * 32))


def sent(round_index: int) -> SentUpdate:
    return SentUpdate(
        round=round_index,
        base_root="00" * 32,
        digest=compute_digest(b"payload").hex(),
        payload_file=f"{round_index}",
        tokens=1,
        loss_micro=1,
    )


def test_the_journal_names_state_and_payload_in_one_step_and_removes_what_it_no_longer_names(tmp_path: Path) -> None:
    journal = make_journal(tmp_path)
    for index in range(3):
        update = sent(index)
        journal.record_state(
            lambda path: Path(path).write_bytes(b"state"),
            name=f"s{index}",
            change=lambda contents, update=update: replace(contents, sent=(update,)),  # type: ignore[misc]
            payload=(update.payload_file, b"payload"),
        )
    assert [path.name for path in journal.state_folder.iterdir()] == ["s2"]
    assert [path.name for path in journal.sent_folder.iterdir()] == ["2"]
    assert load_journal(tmp_path) == journal.contents
    assert journal.load_payload(sent(2)) == b"payload"


@pytest.mark.parametrize("moment", ["state", "journal"])
def test_a_crash_while_recording_keeps_the_old_state_whole(tmp_path: Path, moment: str, monkeypatch: Any) -> None:
    journal = make_journal(tmp_path)
    journal.record_state(lambda path: Path(path).write_bytes(b"old"), name="old", change=lambda contents: contents)

    def crash(path: Path) -> None:
        Path(path).write_bytes(b"new")
        if moment == "state":
            raise KeyboardInterrupt

    if moment == "journal":
        monkeypatch.setattr(journal, "_write", lambda _contents: (_ for _ in ()).throw(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        journal.record_state(crash, name="new", change=lambda contents: replace(contents, last_sent_round=9))
    again = load_journal(tmp_path)
    assert again is not None
    assert again.state_file == "old"
    assert again.last_sent_round == -1
    assert (journal.state_folder / "old").read_bytes() == b"old"


def test_a_home_of_another_chain_or_run_is_refused_with_both_values(tmp_path: Path) -> None:
    run = make_view().run
    journal = open_journal(tmp_path, b"\xaa" * 32, run, ME)
    journal.record_state(lambda path: Path(path).write_bytes(b""), name="s", change=lambda contents: contents)
    with pytest.raises(WrongChain) as caught:
        open_journal(tmp_path, b"\xbb" * 32, run, ME)
    assert "aa" * 32 in caught.value.message
    assert "bb" * 32 in caught.value.message
    with pytest.raises(WrongRun):
        open_journal(tmp_path, b"\xaa" * 32, replace(run, run=2), ME)
    (tmp_path / "journal.json").write_bytes(b"")
    with pytest.raises(WorkerStateDamaged, match=r"journal\.json"):
        open_journal(tmp_path, b"\xaa" * 32, run, ME)


DAMAGED: list[tuple[str, Any]] = [
    ("genesis_hash", "zz"),
    ("genesis_hash", None),
    ("recipe_digest", "aa"),
    ("run", True),
    ("run", "1"),
    ("state_file", 5),
    ("state_file", "../../x"),
    ("state_file", "/etc/passwd"),
    ("state_file", ".."),
    ("last_sent_round", "x"),
    ("last_sent_round", -2),
    ("trained_steps", 1.5),
    ("trained_tokens", -1),
    ("sent", None),
    ("sent", {}),
    ("sent", [5]),
    ("sent", [{"round": 1}]),
    ("unknown", 1),
    ("version", 99),
]


@pytest.mark.parametrize(("field", "value"), DAMAGED, ids=[f"{name}={value!r}" for name, value in DAMAGED])
def test_invalid_journal_is_named_with_the_file(tmp_path: Path, field: str, value: Any) -> None:
    journal = make_journal(tmp_path)
    journal.record_state(lambda path: Path(path).write_bytes(b""), name="s", change=lambda contents: contents)
    path = tmp_path / "journal.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), field: value}))
    with pytest.raises(WorkerStateDamaged, match=r"journal\.json") as caught:
        open_journal(tmp_path, b"\xaa" * 32, make_view().run, ME)
    assert field in caught.value.message
    assert "move" in caught.value.next_step


@pytest.mark.parametrize(
    ("field", "value"), [("payload_file", "../k"), ("digest", "0"), ("raw_transaction", "xyz"), ("blob", 7)]
)
def test_invalid_open_update_is_named(tmp_path: Path, field: str, value: Any) -> None:
    journal = make_journal(tmp_path)
    update = sent(3)
    journal.record_state(
        lambda path: Path(path).write_bytes(b""), name="s", change=lambda contents: replace(contents, sent=(update,))
    )
    path = tmp_path / "journal.json"
    raw = json.loads(path.read_text())
    raw["sent"][0][field] = value
    path.write_text(json.dumps(raw))
    with pytest.raises(WorkerStateDamaged, match=rf"sent\[0\]\.{field}"):
        open_journal(tmp_path, b"\xaa" * 32, make_view().run, ME)


@pytest.mark.parametrize("body", [b"[" * 100_000, b'{"sent":' * 5_000, b"\xff\xfe", b"null", b"[]"])
def test_invalid_journal_bytes(tmp_path: Path, body: bytes) -> None:
    (tmp_path / "journal.json").write_bytes(body)
    with pytest.raises(WorkerStateDamaged):
        open_journal(tmp_path, b"\xaa" * 32, make_view().run, ME)


def test_invalid_journal_that_is_a_folder(tmp_path: Path) -> None:
    (tmp_path / "journal.json").mkdir()
    with pytest.raises(WorkerStateDamaged):
        open_journal(tmp_path, b"\xaa" * 32, make_view().run, ME)


def test_what_a_killed_process_had_half_written_is_removed(tmp_path: Path) -> None:
    """A journal is written many times a round: each kill -9 meanwhile left a file for ever."""
    kept = [tmp_path / name for name in ("journal.json", "lock", "notes.tmp", "a.12.tmp.txt")]
    for path in (*kept, tmp_path / "journal.json.139951576446656.tmp", tmp_path / "tokenizer.json.7.tmp"):
        path.write_text("{}")
    with hold_home(tmp_path):
        assert sorted(tmp_path.iterdir()) == sorted(kept)


def test_two_processes_on_one_home_are_told_apart(tmp_path: Path) -> None:
    with hold_home(tmp_path), pytest.raises(Fatal, match="another worker uses"), hold_home(tmp_path):
        pass
    with hold_home(tmp_path):
        pass
