"""JSON of strangers is bounded before it is parsed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from da.foreign_json import MAX_DEPTH, TooDeep, parse_json

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=4), inner, max_size=6),
    max_leaves=300,
)


def _nest(depth: int, inner: str = "", *, is_object: bool = False) -> bytes:
    return (('{"a":' if is_object else "[") * depth + inner + ("}" if is_object else "]") * depth).encode()


@given(values)
def test_what_json_gives(value: Any) -> None:
    assert parse_json(json.dumps(value).encode()) == value


def test_brackets_in_strings_count_for_nothing() -> None:
    value = ["[" * 200, '"' + "{" * 200, "\\", "]" * 99]
    assert parse_json(json.dumps(value).encode()) == value
    assert parse_json(json.dumps([[]] * 10_000).encode()) == [[]] * 10_000


def test_the_bound_is_exact() -> None:
    parse_json(_nest(MAX_DEPTH))
    parse_json(_nest(MAX_DEPTH, "1", is_object=True))
    parse_json(b"[" + b",".join([_nest(MAX_DEPTH - 1)] * 3) + b"]")


@pytest.mark.parametrize(
    "body",
    [
        _nest(MAX_DEPTH + 1),
        _nest(MAX_DEPTH + 1, "1", is_object=True),
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b"[[]," * 100_000,
        b'[{"a":[],"b":' * 50_000,
        b"[" + b",".join([_nest(MAX_DEPTH)] * 3) + b"]",
    ],
)
def test_invalid_depth(body: bytes) -> None:
    with pytest.raises(TooDeep):
        parse_json(body)


@pytest.mark.parametrize("body", [b"", b"[", b"\xff", b'"', b"[" * 64, b"]" * 100 + b"[" * 100, b'"' + b"[" * 9_999])
def test_invalid_json(body: bytes) -> None:
    with pytest.raises(ValueError):
        parse_json(body)


@pytest.mark.parametrize("body", [b'{"id": NaN}', b"[Infinity]", b"-Infinity", b'{"id": 1e999}', b"[-2E400]"])
def test_what_would_be_no_json_in_an_answer_is_refused(body: bytes) -> None:
    """An answer repeats the id of its call."""
    with pytest.raises(ValueError, match=r"is no JSON|out of range"):
        parse_json(body)
