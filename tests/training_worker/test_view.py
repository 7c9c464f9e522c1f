"""What a worker decides from one look at the chain: what to train, when to send, and why it waits (cases 2, 9)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from training_worker_views import ME, PARAMS, make_round, make_view

from chain.core.rounds import opening
from contracts.bindings.amounts import parse_tokens
from contracts.bindings.types import MemberState, RoundState, RunState
from training.commands.describing import describe_run
from training.worker.funding import find_short_escrow
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


def test_who_has_sent_is_told_which_round_waits_for_whom_and_till_when() -> None:
    both = (ME, "0x" + "22" * 20)
    first, second = replace(make_round(3, due=105), num_committed=1), replace(make_round(4, due=0), num_committed=1)
    view = make_view(first, second, settled=3, participants=both)
    said = explain_wait(view, standing(version=3, sent=4))
    assert said == "sent; round 3 is open for the others, until block 105 at the latest: 1 of its 2 members have sent"
    view = make_view(replace(first, due_height=0), second, settled=3, participants=both)
    assert "round 3 is open for the others: 1 of" in explain_wait(view, standing(version=3, sent=4))
    view = make_view(replace(first, state=RoundState.ATTEST), second, settled=3, participants=both)
    said = explain_wait(view, standing(version=3, sent=4))
    assert said == "sent; the next round opens when an earlier one has settled"


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
