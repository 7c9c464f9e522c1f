"""Ranges as RFC 9110 reads them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.core.errors import RangeNotSatisfiable
from storage.core.ranges import parse_range


@pytest.mark.parametrize(
    ("header", "span"),
    [
        ("bytes=0-0", (0, 1)),
        ("bytes=2-4", (2, 5)),
        ("bytes=7-", (7, 10)),
        ("bytes=-3", (7, 10)),
        ("bytes=-30", (0, 10)),
        ("bytes=0-999", (0, 10)),
        (None, None),
        ("bytes=-", None),
        ("bytes=4-2", None),
        ("bytes=0-1,3-4", None),
        ("lines=0-1", None),
        ("bytes=a-b", None),
    ],
)
def test_forms(header: str | None, span: tuple[int, int] | None) -> None:
    assert parse_range(header, 10) == span


@pytest.mark.parametrize("header", ["bytes=10-", "bytes=11-12", "bytes=-0"])
def test_invalid_outside(header: str) -> None:
    with pytest.raises(RangeNotSatisfiable, match="10 bytes"):
        parse_range(header, 10)


@given(st.text(max_size=30), st.integers(0, 1_000))
def test_total_and_within(text: str, size: int) -> None:
    try:
        span = parse_range(f"bytes={text}", size)
    except RangeNotSatisfiable:
        return
    assert span is None or 0 <= span[0] < span[1] <= size
