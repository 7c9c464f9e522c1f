"""Quota arithmetic: whatever comes and goes, the promise stays within the capacity."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.core.errors import DiskFull, QuotaExceeded, StoreBusy
from storage.core.quota import Quota, compute_charge_bytes, release, reserve, with_used


def make_quota(capacity: int = 1 << 20, used: int = 0, reserved: int = 0) -> Quota:
    return Quota(capacity_bytes=capacity, used_bytes=used, reserved_bytes=reserved)


def test_kept_shards_leave_no_room() -> None:
    with pytest.raises(QuotaExceeded, match="8192 bytes do not fit: 1044480 of 1048576") as caught:
        reserve(make_quota(used=(1 << 20) - 4096), 1, free_bytes=1 << 30, floor_bytes=0)
    assert caught.value.retry_after_seconds == 60


def test_uploads_under_way_are_in_the_way_for_a_moment() -> None:
    with pytest.raises(StoreBusy, match="try again") as caught:
        reserve(make_quota(reserved=(1 << 20) - 4096), 1, free_bytes=1 << 30, floor_bytes=0)
    assert caught.value.retry_after_seconds == 1


def test_the_filesystem_is_full_though_the_quota_is_not() -> None:
    with pytest.raises(DiskFull, match="100000 free, of which 95000 stay free"):
        reserve(make_quota(), 4096, free_bytes=100_000, floor_bytes=95_000)


def test_an_exact_fit_fits() -> None:
    quota = reserve(make_quota(used=(1 << 20) - 8192), 4096, free_bytes=8192, floor_bytes=0)
    assert quota.used_bytes + quota.reserved_bytes == quota.capacity_bytes


@given(st.lists(st.tuples(st.integers(0, 300_000), st.booleans()), max_size=40))
def test_never_above_capacity_and_all_given_back(uploads: list[tuple[int, bool]]) -> None:
    quota, running = make_quota(), []
    for size, is_kept in uploads:
        try:
            quota = reserve(quota, size, free_bytes=1 << 40, floor_bytes=0)
        except (QuotaExceeded, StoreBusy):
            continue
        running.append((size, is_kept))
        assert quota.used_bytes + quota.reserved_bytes <= quota.capacity_bytes
        if len(running) > 2:
            done, was_kept = running.pop(0)
            if was_kept:
                quota = with_used(quota, quota.used_bytes + compute_charge_bytes(done))
            quota = release(quota, done)
    for size, _ in running:
        quota = release(quota, size)
    assert quota.reserved_bytes == 0
    assert quota.used_bytes <= quota.capacity_bytes


@given(st.integers(0, 1 << 50))
def test_the_charge_covers_the_bytes_and_little_more(size: int) -> None:
    charge = compute_charge_bytes(size)
    assert size + 4096 <= charge < size + 2 * 4096
    assert charge % 4096 == 0
