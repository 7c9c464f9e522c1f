"""Ranges of leaves lead to the root; spans name the bytes that decoding would give."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from da.codec import encode_blob
from da.core.blob import STRIPE_BYTES, compute_shard_bytes
from da.core.errors import BadProof, MalformedMessage
from da.core.leaf_ranges import (
    build_levels,
    compute_range_siblings,
    decode_range_answer,
    encode_range_answer,
    verify_range,
)
from da.core.merkle import compute_leaf_hashes, compute_num_leaves, compute_root
from da.core.piece_spans import plan_spans

LEAF = 64


@settings(deadline=None)
@given(st.integers(1, 3_000), st.data())
def test_any_range_verifies_and_no_other_bytes_do(size_bytes: int, data: st.DataObject) -> None:
    shard = random.Random(size_bytes).randbytes(size_bytes)
    num_leaves = compute_num_leaves(size_bytes, LEAF)
    first = data.draw(st.integers(0, num_leaves - 1))
    stop = data.draw(st.integers(first + 1, num_leaves))
    root = compute_root(shard, leaf_bytes=LEAF)
    siblings = compute_range_siblings(build_levels(compute_leaf_hashes(shard, leaf_bytes=LEAF)), first, stop)
    leaves = shard[first * LEAF : stop * LEAF]
    got, body = decode_range_answer(encode_range_answer(siblings, leaves))
    verify_range(root, body, got, first=first, size_bytes=size_bytes, leaf_bytes=LEAF)
    assert len(siblings) <= 2 * num_leaves.bit_length()
    flipped = bytearray(leaves)
    flipped[data.draw(st.integers(0, len(leaves) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    other = data.draw(st.integers(0, num_leaves).filter(lambda index: index != first))
    cases = [
        (bytes(flipped), siblings, first, size_bytes),
        (leaves, (*siblings, bytes(32)), first, size_bytes),
        (leaves, siblings, first, size_bytes + LEAF),
        (leaves, siblings, other, size_bytes),
        (leaves[:-1], siblings, first, size_bytes),
        (b"", siblings, first, size_bytes),
        *([(leaves, siblings[:-1], first, size_bytes)] if siblings else []),
    ]
    for body, path, at, size in cases:
        if len({leaves}) and (body, path, at, size) == (leaves, siblings, first, size_bytes):
            continue
        with pytest.raises(BadProof):
            verify_range(root, body, path, first=at, size_bytes=size, leaf_bytes=LEAF)


@given(st.binary(max_size=200))
def test_decoding_is_total(data: bytes) -> None:
    try:
        siblings, leaves = decode_range_answer(data)
    except MalformedMessage:
        return
    assert encode_range_answer(siblings, bytes(leaves)) == data


@settings(deadline=None)
@given(st.integers(0, 5_000), st.integers(1, 6), st.data())
def test_spans_hold_the_bytes_of_the_blob(size_bytes: int, num_data: int, data: st.DataObject) -> None:
    blob = random.Random(size_bytes).randbytes(size_bytes)
    start = data.draw(st.integers(0, size_bytes))
    stop = data.draw(st.integers(start, size_bytes))
    shards = encode_blob(blob, num_data=num_data, num_shards=num_data + 1, leaf_bytes=LEAF).shards
    found = b"".join(
        b"".join(map(bytes, shards[span.shard]))[span.shard_start : span.shard_stop]
        for span in plan_spans(size_bytes, num_data, start=start, stop=stop)
    )
    assert found == blob[start:stop]


@pytest.mark.parametrize("num_data", [1, 2, 3, 16])
def test_spans_of_many_stripes_touch_each_byte_once(num_data: int) -> None:
    size_bytes = 2 * STRIPE_BYTES + 12_345
    spans = plan_spans(size_bytes, num_data, start=0, stop=size_bytes)
    at = 0
    for span in spans:
        assert span.start == at
        at += span.shard_stop - span.shard_start
        assert span.shard_stop <= compute_shard_bytes(size_bytes, num_data)
    assert at == size_bytes
    across = plan_spans(size_bytes, num_data, start=STRIPE_BYTES - 1, stop=STRIPE_BYTES + 1)
    assert [(span.shard, span.start) for span in across] == [(num_data - 1, STRIPE_BYTES - 1), (0, STRIPE_BYTES)]
