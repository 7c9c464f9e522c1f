"""Samples: recomputable by anyone, disjoint between members (CASES 16)."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training.core.errors import CorpusTooSmallError
from training.core.sampling import SamplePlan, compute_data_seed, plan_samples

MEMBERS = [bytes([index]) * 20 for index in range(1, 9)]


def _plan(member: bytes, participants: list[bytes], round_index: int = 4, num_bytes: int = 100_000) -> SamplePlan:
    return plan_samples(
        seed=1,
        round_index=round_index,
        data_seed=compute_data_seed(1, round_index),
        member=member,
        participants=participants,
        num_bytes=num_bytes,
        context=64,
    )


@settings(deadline=None)
@given(st.integers(1, 8), st.integers(0, 1000), st.integers(1000, 100_000))
def test_members_of_a_round_share_no_byte_but_the_last(num_members: int, round_index: int, num_bytes: int) -> None:
    members = MEMBERS[:num_members]
    taken: list[int] = []
    for member in members:
        plan = _plan(member, members, round_index, num_bytes)
        starts = list(plan.starts(0, plan.num_windows // num_members))
        assert all(start >= 0 and start + 65 <= num_bytes for start in starts)
        taken += starts
    taken.sort()
    assert all(later - earlier >= 64 for earlier, later in pairwise(taken))


def test_samples_stay_disjoint_while_members_come_and_go() -> None:
    for round_index, num_members in enumerate([1, 3, 2]):
        members = MEMBERS[:num_members]
        sets = [set(_plan(member, members, round_index).starts(0, 300)) for member in members]
        assert all(len(each) == 300 for each in sets)
        assert len(set.union(*sets)) == 300 * num_members


def test_anyone_recomputes_the_same_samples() -> None:
    first = list(_plan(MEMBERS[0], MEMBERS[:3]).starts(16, 8))
    again = list(_plan(MEMBERS[0], list(reversed(MEMBERS[:3]))).starts(0, 24))[16:]
    assert first == again


def test_rounds_and_seeds_differ() -> None:
    starts = [tuple(_plan(MEMBERS[0], MEMBERS[:2], round_index).starts(0, 20)) for round_index in range(20)]
    assert len(set(starts)) == 20


def test_members_without_a_list_walk_apart() -> None:
    starts = [tuple(_plan(member, []).starts(0, 20)) for member in MEMBERS]
    assert len(set(starts)) == len(MEMBERS)


def test_invalid_text_without_a_sample() -> None:
    assert list(_plan(MEMBERS[0], MEMBERS[:2], num_bytes=65).starts(0, 2)) == [0, 0]
    for num_bytes in (64, 3, 0):
        with pytest.raises(CorpusTooSmallError, match=f"has {num_bytes} tokens .* needs at least 65"):
            _plan(MEMBERS[0], MEMBERS[:2], num_bytes=num_bytes)


def test_smallest_text_still_gives_samples() -> None:
    plan = _plan(MEMBERS[0], MEMBERS[:2], num_bytes=66)
    assert all(0 <= start <= 1 for start in plan.starts(0, 10))
