"""The round machine under random histories: what must hold in all of them (DESIGN 4.1).

``ROUND_HISTORIES=20000 pytest tests/contracts_native/test_round_histories.py`` plays more of them.
"""

from __future__ import annotations

import os

import pytest
from simulator import play_history

NUM_HISTORIES = int(os.environ.get("ROUND_HISTORIES", "500"))
"""In all; a quarter for each of F = 1, 4 and d = 0, 1."""


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("overlap", [0, 1])
@pytest.mark.parametrize("fragments", [1, 4])
def test_every_history_settles_and_a_lone_newcomer_reaches_final(fragments: int, overlap: int) -> None:
    num_final = num_void = num_lies = num_reverts = 0
    for seed in range(NUM_HISTORIES // 4):
        world = play_history(10_000 * fragments + 100_000_000 * overlap + seed, fragments=fragments, overlap=overlap)
        num_final += world.num_final
        num_void += world.num_void
        num_reverts += world.num_reverts
        num_lies += bool(world.lies_final)
        assert all(lie.is_within_the_rules for lie in world.lies_final), (seed, world.lies_final)
    # the histories are rough, but most rounds get through, and every kind of end occurs
    assert num_final > num_void > 0
    assert num_reverts > 0
    assert num_lies <= max(3, NUM_HISTORIES // 4 // 8), "lies became FINAL far too often"


def test_a_history_is_a_function_of_its_seed() -> None:
    first = play_history(3, fragments=4, overlap=1)
    second = play_history(3, fragments=4, overlap=1)
    assert first.events == second.events
    assert first.state.changes() == second.state.changes()
