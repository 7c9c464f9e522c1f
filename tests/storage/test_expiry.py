"""The planner deletes by height, and by nothing else."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from da.core.types import BlobId, Height, ShardIndex
from storage.core.expiry import (
    GRACE_BLOCKS,
    MAX_ASKED,
    PINNED,
    RECHECK_BLOCKS,
    UNKNOWN,
    HeldShard,
    plan_questions,
    plan_sweep,
)


def hold(number: int, expiry: int, shard: int = 0) -> HeldShard:
    return HeldShard(blob=BlobId(number.to_bytes(32, "big")), shard=ShardIndex(shard), expiry=Height(expiry))


def test_a_released_shard_goes_after_the_grace() -> None:
    held = hold(1, 100)
    release = {held.blob: 150}
    assert plan_sweep([held], release, Height(150 + GRACE_BLOCKS)).delete == (held,)
    assert plan_sweep([held], release, Height(150 + GRACE_BLOCKS - 1)).delete == ()


def test_a_shard_that_was_never_certified_goes_at_its_own_expiry() -> None:
    held = hold(1, 100)
    assert plan_sweep([held], {held.blob: UNKNOWN}, Height(100 + GRACE_BLOCKS)).delete == (held,)
    assert plan_sweep([held], {held.blob: UNKNOWN}, Height(99 + GRACE_BLOCKS)).delete == ()


def test_a_pinned_shard_stays_and_is_asked_about_again() -> None:
    held = hold(1, 100)
    sweep = plan_sweep([held], {held.blob: PINNED}, Height(10**12))
    assert sweep.delete == ()
    assert sweep.keep == ((held, PINNED, 10**12 + RECHECK_BLOCKS),)


def test_no_answer_is_no_permission() -> None:
    held = hold(1, 100)
    sweep = plan_sweep([held], {}, Height(10**9))
    assert sweep.delete == () == sweep.keep


def test_a_longer_receipt_outlasts_a_shorter_lease() -> None:
    held = hold(1, 500)
    assert plan_sweep([held], {held.blob: 200}, Height(300)).delete == ()


def test_questions_come_in_batches_of_distinct_blobs() -> None:
    due = [hold(number // 2, 1, shard=number % 2) for number in range(2 * MAX_ASKED + 10)]
    batches = plan_questions(due)
    assert [len(batch) for batch in batches] == [MAX_ASKED, 5]
    assert len({blob for batch in batches for blob in batch}) == MAX_ASKED + 5


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(1, 1_000)), max_size=40),
    st.dictionaries(st.integers(0, 20), st.one_of(st.integers(0, 2_000), st.just(PINNED))),
    st.integers(0, 3_000),
)
def test_nothing_live_is_ever_deleted(due: list[tuple[int, int]], releases: dict[int, int], height: int) -> None:
    held = [hold(number, expiry, shard=index) for index, (number, expiry) in enumerate(due)]
    said = {BlobId(number.to_bytes(32, "big")): release for number, release in releases.items()}
    sweep = plan_sweep(held, said, Height(height))
    for shard in sweep.delete:
        assert shard.blob in said
        assert said[shard.blob] + GRACE_BLOCKS <= height
        assert shard.expiry + GRACE_BLOCKS <= height
    for shard, _, again in sweep.keep:
        assert height < again <= height + RECHECK_BLOCKS
        assert shard not in sweep.delete
    answered = [shard for shard in held if shard.blob in said]
    assert len(sweep.delete) + len(sweep.keep) == len(answered)
