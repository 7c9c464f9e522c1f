"""The arithmetic beside the demo's table."""

from __future__ import annotations

import pytest

from localnet.core.traffic import compute_allreduce_bytes, format_bytes, sum_over_lives


def test_allreduce_of_two_workers_sends_the_gradient_once_a_step() -> None:
    assert compute_allreduce_bytes(num_workers=2, num_parameters=1_000, num_steps=10) == 20_000


def test_allreduce_of_many_workers_sends_it_nearly_twice() -> None:
    assert compute_allreduce_bytes(num_workers=8, num_parameters=1_000, num_steps=1) == 2 * 7 * 2 * 1_000 // 8


def test_allreduce_of_one_worker_sends_nothing() -> None:
    assert compute_allreduce_bytes(num_workers=1, num_parameters=10**9, num_steps=10**6) == 0


def test_counters_are_added_up_over_restarts() -> None:
    readings = [
        {"chain_sent": 5},
        {"chain_sent": 9, "store_sent": 4},
        {"chain_sent": 2, "store_sent": 1},
        {"chain_sent": 3},
    ]
    assert sum_over_lives(readings) == {"chain_sent": 12, "store_sent": 5}
    assert sum_over_lives([]) == {}


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1_234, "1.23 kB"), (1_234_567, "1.23 MB"), (56_000_000_000, "56 GB")],
)
def test_bytes_are_written_for_people(count: int, text: str) -> None:
    assert format_bytes(count) == text
