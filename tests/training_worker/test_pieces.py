"""The worker's small parts: decisions, trace, journal, amounts, timers, folders, restoring (cases 2, 9, 25, 77)."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain.core.rounds import opening
from contracts.bindings.amounts import parse_tokens
from contracts.bindings.types import Member, MemberState, RoundInfo, RoundState, RunInfo, RunParams, RunState
from training.commands.describing import describe_run
from training.commands.output import format_bytes, parse_amount
from training.commands.timing import BlockPace
from training.core.canonical import create_genesis
from training.core.recipe_text import compute_recipe_digest, parse_recipe
from training.recipes.shipped import load_shipped
from training.worker.errors import Fatal, WorkerStateDamaged, WrongChain, WrongRun
from training.worker.folder import (
    ABOUT_FILE,
    MODEL_FILE,
    STATE_FILE,
    About,
    BadModelFolder,
    NoModelFolder,
    load_model_folder,
    save_model_folder,
)
from training.worker.funding import find_short_escrow
from training.worker.journal import Journal, JournalContents, SentUpdate, load_journal
from training.worker.opening import open_journal
from training.worker.process import hold_home
from training.worker.restore import restore_newest
from training.worker.source import compute_digest
from training.worker.trace import EventKind, Trace, TraceEvent, compute_overlap, load_trace
from training.worker.view import (
    MAX_INTERVALS_BACK,
    SEE_RUN,
    ChainView,
    Standing,
    advise_wait,
    choose_round,
    compute_checkpoint_versions,
    compute_rejoin_is_due,
    compute_start_version,
    explain_wait,
    is_closed,
    is_time_to_send,
)

ME = "0x" + "11" * 20
PARAMS = RunParams(
    num_fragments=4,
    overlap=1,
    local_steps=8,
    num_rounds=20,
    min_members=2,
    max_members=8,
    round_blocks=120,
    grace_blocks=10,
    reveal_blocks=10,
    attest_blocks=30,
    dispute_blocks=60,
    recover_blocks=200,
    lock_blocks=20,
    checkpoint_interval=8,
    num_checkpoint_parts=2,
    lease_blocks=2000,
    is_allow_listed=False,
    is_sealed=False,
    reward_per_update=0,
    member_bond=0,
)


def make_round(index: int, *, state: RoundState = RoundState.OPEN, base: int = 0, due: int = 1000) -> RoundInfo:
    return RoundInfo(
        round=index,
        state=state,
        fragment=index % 4,
        local_steps=8,
        rank=4,
        base_version=base,
        base_root=bytes(32),
        root=bytes(32),
        opened_height=1,
        closed_height=0,
        attest_height=0,
        settled_height=0,
        due_height=due,
        num_eligible=2,
        num_committed=0,
        num_accepted=0,
        num_votes=0,
        retries=0,
        storage_epoch=1,
        data_seed=bytes(32),
    )


def make_view(
    *rounds: RoundInfo,
    height: int = 100,
    settled: int = 0,
    certified: int = 0,
    run_state: RunState = RunState.RUNNING,
    member_state: MemberState = MemberState.ACTIVE,
    rejoin: int = 0,
    participants: tuple[str, ...] = (ME,),
) -> ChainView:
    run = RunInfo(
        run=1,
        owner=ME,
        state=run_state,
        recipe_digest=bytes(32),
        genesis_root=bytes(32),
        head_version=settled,
        head_root=bytes(32),
        num_opened=settled + len(rounds),
        num_settled=settled,
        num_rounds_total=24,
        num_members=2,
        num_eligible=1,
        voids_in_row=0,
        certified_version=certified,
        certified_root=bytes(32),
        escrow=0,
        paid_rewards=0,
        paid_storage=0,
        created_height=1,
        rank=4,
        local_steps=8,
        params=PARAMS,
    )
    member = Member(
        worker=ME,
        payout=ME,
        state=member_state,
        bond=0,
        joined_height=1,
        rejoin_height=rejoin,
        bond_unlock_height=0,
        missed=0,
        drops=0,
        accepted=0,
        refused=0,
        tokens=0,
        earned=0,
        last_round=0,
        client="",
    )
    return ChainView(
        height=height,
        run=run,
        member=member,
        rounds={info.round: info for info in rounds},
        participants={info.round: participants for info in rounds},
        seen_seconds=0.0,
    )


def standing(version: int = 0, sent: int = -1, *, behind: bool = False) -> Standing:
    return Standing(me=ME, version=version, last_sent_round=sent, is_behind=behind)


def chosen(view: ChainView, where: Standing) -> int | None:
    info = choose_round(view, where)
    return None if info is None else info.round


def test_a_worker_takes_the_oldest_open_round_it_has_not_sent() -> None:
    view = make_view(make_round(0, due=0), make_round(1, due=0))
    assert chosen(view, standing()) == 0
    assert chosen(view, standing(sent=0)) == 1
    assert chosen(view, standing(sent=1)) is None


def test_a_worker_that_fell_behind_takes_the_newest_open_round() -> None:
    view = make_view(make_round(4, base=4), make_round(5, base=4), settled=4)
    assert chosen(view, standing(version=4, sent=2)) == 4
    assert chosen(view, standing(version=4, sent=2, behind=True)) == 5


def test_a_worker_past_the_base_sits_the_round_out() -> None:
    view = make_view(make_round(4, base=4), make_round(5, base=5), settled=4)
    assert chosen(view, standing(version=5, sent=2)) == 5
    assert chosen(make_view(make_round(4, base=4), settled=4), standing(version=5)) is None


def test_who_is_not_in_v_or_not_live_any_more_trains_nothing() -> None:
    assert chosen(make_view(make_round(0), participants=("0x" + "22" * 20,)), standing()) is None
    assert chosen(make_view(make_round(0), member_state=MemberState.DROPPED), standing()) is None
    assert chosen(make_view(make_round(0, state=RoundState.ATTEST)), standing()) is None


def test_a_round_in_grace_is_left_for_a_newer_one_but_not_for_nothing() -> None:
    late, fresh = make_round(4, base=4, due=105), make_round(5, base=4, due=0)
    assert chosen(make_view(replace(late, state=RoundState.OPEN), fresh, settled=4), standing(version=4)) == 5
    assert chosen(make_view(late, settled=4), standing(version=4)) == 4


@pytest.mark.parametrize(("due", "expected"), [(0, False), (111, False), (110, True), (101, True)])
def test_time_to_send_is_when_no_more_than_the_grace_blocks_are_left(due: int, expected: bool) -> None:
    view = make_view(make_round(3, due=due), settled=3)
    assert is_time_to_send(view, view.rounds[3]) is expected


def test_nothing_hurries_while_the_round_before_is_open() -> None:
    view = make_view(make_round(3, due=105), make_round(4, due=105), settled=3)
    assert not is_time_to_send(view, view.rounds[4])


def test_a_round_is_closed_when_it_left_open_or_has_settled() -> None:
    view = make_view(make_round(3, state=RoundState.ATTEST), make_round(4), settled=3)
    assert is_closed(view, 2)
    assert is_closed(view, 3)
    assert not is_closed(view, 4)
    assert not is_closed(view, 5)


@pytest.mark.parametrize("state", list(RunState))
@pytest.mark.parametrize("member", list(MemberState))
def test_every_wait_has_a_reason(state: RunState, member: MemberState) -> None:
    assert explain_wait(make_view(run_state=state, member_state=member), standing())


def make_short(*, has_wei: int, opened: int = 40, **changes: Any) -> ChainView:
    """A run that waits for money, 41 rounds before its end."""
    view = make_view(run_state=RunState.WAITING, settled=40)
    params = replace(PARAMS, reward_per_update=5 * 10**17, min_members=2)
    run = replace(view.run, escrow=has_wei, params=params, num_eligible=2, num_rounds_total=81, num_opened=opened)
    return replace(view, run=replace(run, paid_storage=7_685_377_817, paid_rewards=39 * 10**18, **changes))


def test_an_escrow_that_is_short_by_gwei_is_said_to_the_last_digit() -> None:
    """It said `1 token` of both, and "empty or its checkpoint is overdue"."""
    view = make_short(has_wei=999_999_992_314_622_183)
    said = explain_wait(view, standing())
    assert said == (
        "the run waits for money: its escrow has 0.999999992314622183 tokens, the next round needs 1 token and its "
        "storage"
    )
    assert advise_wait(view).startswith("trainer run fund 40.01 --run 1 --key-file KEY (enough for the 41 rounds left)")
    rows = dict(describe_run(view.run))
    assert rows["escrow"] == "0.999999992314622183 tokens"
    assert rows["waits for money"] == f"{find_short_escrow(view.run)}; next: {advise_wait(view).partition(', then')[0]}"


@pytest.mark.parametrize("has_wei", [0, 1, 10**18, 10**18 + 1])
def test_what_is_asked_for_lets_the_round_open(has_wei: int) -> None:
    """The chain's own condition, with the largest lease that these rounds can have had (escrow.is_escrow_empty)."""
    for changes in ({}, {"opened": 41}, {"num_rounds_total": 40}):
        run = make_short(has_wei=has_wei, **changes).run  # type: ignore[arg-type]
        short = find_short_escrow(run)
        assert short is not None
        assert ("promised" in str(short)) == (run.num_opened > run.num_settled)
        needed = run.num_eligible * (run.params.reward_per_update + run.paid_storage)
        assert has_wei + parse_tokens(short.next_step.split()[3]) >= needed


def test_a_run_that_waits_for_members_is_not_short_of_money() -> None:
    view = make_short(has_wei=0, num_members=1)
    few = replace(view, run=replace(view.run, num_eligible=1))
    assert find_short_escrow(few.run) is None
    assert explain_wait(few, standing()) == "the run waits for members: 1 eligible, 2 needed"
    assert advise_wait(few) == SEE_RUN


def test_a_checkpoint_that_is_overdue_is_said() -> None:
    """The chain opens no round more than two intervals ahead of the certified version."""
    late = make_view(settled=2 * PARAMS.checkpoint_interval + 1)
    assert explain_wait(late, standing()) == "the next round opens once a checkpoint after version 0 is stored"
    assert MAX_INTERVALS_BACK == opening.MAX_INTERVALS_BACK


def test_rejoin_is_due_for_strangers_and_for_the_dropped_after_their_delay() -> None:
    assert compute_rejoin_is_due(make_view(member_state=MemberState.NONE))
    assert not compute_rejoin_is_due(make_view(member_state=MemberState.ACTIVE))
    assert not compute_rejoin_is_due(make_view(member_state=MemberState.DROPPED, height=99, rejoin=100))
    assert compute_rejoin_is_due(make_view(member_state=MemberState.DROPPED, height=100, rejoin=100))


def test_a_fresh_worker_starts_at_the_base_of_a_round_it_can_still_do() -> None:
    view = make_view(make_round(6, base=5), make_round(7, base=6), settled=6)
    assert compute_start_version(view, ME, -1) == 5
    assert compute_start_version(view, ME, 6) == 6
    assert compute_start_version(view, "0x" + "22" * 20, -1) == 6


def test_checkpoint_versions_are_those_since_the_certified_one_and_the_last() -> None:
    assert compute_checkpoint_versions(make_view(settled=25, certified=8).run) == [24, 16]
    assert compute_checkpoint_versions(make_view(settled=7, certified=0).run) == []
    finished = make_view(settled=23, certified=16, run_state=RunState.FINISHED).run
    assert compute_checkpoint_versions(finished) == [23]


def event(kind: EventKind, round_index: int, start: float, end: float) -> TraceEvent:
    return TraceEvent(kind=kind, round=round_index, start_seconds=start, end_seconds=end, wall_seconds=0.0)


def test_overlap_is_the_share_of_the_exchange_under_later_inner_steps() -> None:
    events = [
        event(EventKind.TRAIN, 3, 0, 10),
        event(EventKind.DISPERSE, 3, 10, 11),
        event(EventKind.FETCH, 3, 10.5, 12),  # overlaps the disperse: counted once
        event(EventKind.ATTEST, 3, 13, 14),
        event(EventKind.TRAIN, 4, 11, 20),
        event(EventKind.WAIT, 4, 20, 30),
    ]
    overlap = compute_overlap(events)
    assert overlap.exchange_seconds == pytest.approx(3)
    assert overlap.hidden_seconds == pytest.approx(2)
    assert overlap.share == pytest.approx(2 / 3)
    assert compute_overlap(events, first_round=4).exchange_seconds == 0
    assert compute_overlap(events, stop_round=3).exchange_seconds == 0


def test_an_exchange_under_its_own_rounds_steps_hides_nothing() -> None:
    assert compute_overlap([event(EventKind.TRAIN, 3, 0, 10), event(EventKind.FETCH, 3, 1, 2)]).share == 0


def test_a_torn_line_costs_only_itself(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    trace = Trace(path)
    with trace.span(EventKind.FETCH, 1) as span:
        span.num_bytes = 5
    trace.close()
    path.write_bytes(path.read_bytes() + b'{"kind":"fetch","rou')
    trace = Trace(path)
    trace.record_traffic({"rpc_sent": 7})
    trace.close()
    events = load_trace(path)
    assert [item.kind for item in events] == [EventKind.FETCH, EventKind.TRAFFIC]
    assert events[0].num_bytes == 5
    assert events[1].counters == {"rpc_sent": 7}


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


def test_a_trace_takes_no_more_than_two_files(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("training.worker.trace.MAX_FILE_BYTES", 2_000)
    trace = Trace(tmp_path / "trace.jsonl")
    for number in range(100):
        trace.record_traffic({"number": number})
    trace.close()
    old, new = (load_trace(tmp_path / name) for name in ("trace.jsonl.previous", "trace.jsonl"))
    numbers = [event.counters["number"] for event in (*old, *new)]
    assert numbers == list(range(numbers[0], 100)), "the newest ones, without a gap"
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 2 * 2_200
    assert len(list(tmp_path.iterdir())) == 2


def test_a_trace_that_has_no_room_for_another_file_goes_on_in_this_one(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("training.worker.trace.MAX_FILE_BYTES", 2_000)
    trace = Trace(tmp_path / "trace.jsonl")
    real_open = Path.open

    def refuse(path: Path, *arguments: Any, **options: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(Path, "open", refuse)
    for number in range(30):
        trace.record_traffic({"number": number})
    monkeypatch.setattr(Path, "open", real_open)
    for number in range(30, 33):
        trace.record_traffic({"number": number})
    trace.close()
    old, new = (load_trace(tmp_path / name) for name in ("trace.jsonl.previous", "trace.jsonl"))
    assert [event.counters["number"] for event in old] == list(range(31))
    assert [event.counters["number"] for event in new] == [31, 32]


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


def test_two_processes_on_one_home_are_told_apart(tmp_path: Path) -> None:
    with hold_home(tmp_path), pytest.raises(Fatal, match="another worker uses"), hold_home(tmp_path):
        pass
    with hold_home(tmp_path):
        pass


@given(st.integers(min_value=0, max_value=10**30))
def test_amounts_are_read_exactly(wei: int) -> None:
    text = f"{wei // 10**18}.{wei % 10**18:018d}"
    assert parse_amount(text) == wei


@pytest.mark.parametrize("text", ["", ".", "-1", "1e3", "0x10", "1.0000000000000000001", "1,5"])
def test_what_is_no_amount_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no amount"):
        parse_amount(text)


def test_amounts_and_bytes_are_written_for_people() -> None:
    assert format_bytes(999) == "999 B"
    assert format_bytes(1_234_567) == "1.23 MB"


@pytest.mark.parametrize(
    ("seconds", "proposers", "expected"), [(36.0, 1, 120), (0.1, 1, 2), (0.1, 7, 14), (3.1, 1, 11)]
)
def test_seconds_become_blocks_of_at_least_two_rotations(seconds: float, proposers: int, expected: int) -> None:
    assert BlockPace(block_seconds=0.3, num_proposers=proposers).compute_blocks(seconds) == expected


@pytest.fixture(scope="module")
def tiny() -> tuple[str, Any]:
    text = load_shipped("tiny")
    return text, create_genesis(parse_recipe(text))


def save_tiny(folder: Path, tiny: tuple[str, Any], *, replace_existing: bool = False) -> About:
    text, state = tiny
    about = About(
        chain_id=1,
        genesis_hash="00",
        run=1,
        version=0,
        root=state.root().hex(),
        recipe_digest=compute_recipe_digest(text).hex(),
    )
    save_model_folder(folder, state=state, recipe_text=text, about=about, replace_existing=replace_existing)
    return about


def test_a_model_folder_comes_back_with_its_root(tmp_path: Path, tiny: tuple[str, Any]) -> None:
    about = save_tiny(tmp_path / "model", tiny)
    model = load_model_folder(tmp_path / "model")
    assert model.about == about
    assert model.state.root() == tiny[1].root()
    with pytest.raises(Fatal, match="exists already"):
        save_tiny(tmp_path / "model", tiny)
    save_tiny(tmp_path / "model", tiny, replace_existing=True)
    assert [path.name for path in tmp_path.iterdir()] == ["model"], "no temporary folder is left"


def test_no_folder_but_a_pulled_model_is_replaced(tmp_path: Path, tiny: tuple[str, Any]) -> None:
    home, file, empty = tmp_path / "home", tmp_path / "file", tmp_path / "empty"
    home.mkdir()
    (home / "thesis.txt").write_text("years of work")
    file.write_text("a file")
    empty.mkdir()
    for place in (home, file):
        with pytest.raises(Fatal, match="holds no model that was pulled"):
            save_tiny(place, tiny, replace_existing=True)
    assert (home / "thesis.txt").read_text() == "years of work"
    save_tiny(empty, tiny, replace_existing=True)
    save_tiny(empty, tiny, replace_existing=True)
    assert sorted(tmp_path.iterdir()) == [empty, file, home], "nothing beside them"


@pytest.mark.parametrize("file", [STATE_FILE, MODEL_FILE, ABOUT_FILE])
@pytest.mark.parametrize("damage", ["cut", "flipped", "gone"])
def test_a_damaged_model_folder_is_refused_by_name(
    tmp_path: Path, tiny: tuple[str, Any], file: str, damage: str
) -> None:
    save_tiny(tmp_path / "model", tiny)
    path = tmp_path / "model" / file
    data = bytearray(path.read_bytes())
    if damage == "cut":
        path.write_bytes(data[: len(data) // 2])
    elif damage == "gone":
        path.unlink()
    elif file == ABOUT_FILE:
        path.write_text(json.dumps({**json.loads(data), "root": "00" * 32}))
    else:
        data[-1] ^= 1
        path.write_bytes(data)
    is_model_folder = (tmp_path / "model" / ABOUT_FILE).exists()
    with pytest.raises(BadModelFolder if is_model_folder else NoModelFolder):
        load_model_folder(tmp_path / "model")


def test_a_pull_that_is_cut_leaves_nothing_under_the_final_name(
    tmp_path: Path, tiny: tuple[str, Any], monkeypatch: Any
) -> None:
    monkeypatch.setattr(
        "training.worker.folder.save_durable", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device"))
    )
    with pytest.raises(OSError, match="No space"):
        save_tiny(tmp_path / "model", tiny)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("harm", ["none", "withheld", "cut", "other state"])
def test_a_checkpoint_that_does_not_prove_itself_is_passed_over(
    net: Any, tmp_path: Path, harm: str, caplog: Any
) -> None:
    net.create_run(minMembers=1, numRounds=8, checkpointInterval=2, roundBlocks=60)
    ann = net.worker("ann").start()
    ann.join()
    assert ann.error is None
    info = net.info()
    memory = net.chain
    newest = memory.read("Training", "checkpointAt", (net.run, info.certified_version))
    blob = newest.blobs[-1]
    if harm == "withheld":
        memory.withheld.add(blob)
    elif harm == "cut":
        memory.blobs[blob] = memory.blobs[blob][:-1]
    elif harm == "other state":
        memory.blobs[blob] = memory.blobs[blob].replace(b"1", b"2")
    trace = Trace(tmp_path / "trace.jsonl")
    with caplog.at_level("WARNING", logger="trainer"):
        state, version = restore_newest(chain=ann.ports, payloads=ann.ports, rules=ann.rules, trace=trace, run=info)
    trace.close()
    assert state.root() == memory.read("Training", "root", (net.run, version))
    if harm == "none":
        assert version == info.certified_version
    else:
        assert version < info.certified_version
        assert f"checkpoint {info.certified_version}" in caplog.text
