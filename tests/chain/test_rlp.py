"""RLP against the package that Ethereum's Python tools use."""

from __future__ import annotations

import pytest
import rlp as oracle
from hypothesis import given
from hypothesis import strategies as st

from chain.core import rlp

ITEMS = st.recursive(st.binary(max_size=80), lambda inner: st.lists(inner, max_size=5), max_leaves=12)


@given(ITEMS)
def test_encodes_as_the_oracle_and_decodes_back(item: rlp.Item) -> None:
    encoded = rlp.encode(item)
    assert encoded == oracle.encode(item)
    assert rlp.decode(encoded) == item


@given(st.binary(max_size=12))
def test_accepts_exactly_what_encodes_to_itself(data: bytes) -> None:
    try:
        item = rlp.decode(data)
    except rlp.InvalidRlp:
        with pytest.raises(oracle.exceptions.DecodingError):
            oracle.decode(data, strict=True)
    else:
        assert rlp.encode(item) == data


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "before its first byte"),
        (b"\x81\x7f", "below 0x80"),
        (b"\xb8\x01\xff", "long form"),
        (b"\xb9\x00\x38" + bytes(56), "leading zero"),
        (b"\x83ab", "are left"),
        (b"\x80\x80", "after the item"),
        (b"\xc2\x83\x01", "are left"),
        (b"\xc1" * 9 + b"\xc0", "are left"),
    ],
)
def test_invalid_encoding(data: bytes, why: str) -> None:
    with pytest.raises(rlp.InvalidRlp, match=why):
        rlp.decode(data)


def test_invalid_depth() -> None:
    data = b"\xc0"
    for _ in range(20):
        data = rlp.encode_header(0xC0, len(data)) + data
    with pytest.raises(rlp.InvalidRlp, match="deeper"):
        rlp.decode(data)
