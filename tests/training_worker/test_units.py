"""Amounts, bytes and blocks as people give and read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.commands.output import format_bytes, parse_amount
from training.commands.timing import BlockPace


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
