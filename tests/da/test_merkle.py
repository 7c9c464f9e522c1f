"""Trees: every leaf has a proof, and nothing else does."""

from __future__ import annotations

import dataclasses
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from da.core.errors import BadProof, MalformedProof
from da.core.merkle import (
    RootBuilder,
    compute_leaf_hashes,
    compute_num_leaves,
    compute_proof,
    compute_root,
    compute_top,
    decode_proof,
    encode_proof,
    verify_path,
    verify_proof,
)

LEAF = 4


def cut(data: bytes, index: int) -> bytes:
    return data[index * LEAF : (index + 1) * LEAF]


@settings(max_examples=150, deadline=None)
@given(data=st.binary(max_size=70), pick=st.integers(0, 10**6))
def test_every_leaf_has_a_proof(data: bytes, pick: int) -> None:
    hashes = compute_leaf_hashes(data, leaf_bytes=LEAF)
    root = compute_root(data, leaf_bytes=LEAF)
    assert len(hashes) == compute_num_leaves(len(data), LEAF)
    index = pick % len(hashes)
    proof = compute_proof(hashes, index, size_bytes=len(data), leaf_bytes=LEAF)
    assert decode_proof(encode_proof(proof)) == proof
    verify_proof(root, cut(data, index), proof)
    verify_path(compute_top(hashes), hashes[index], index, len(hashes), proof.siblings)


@settings(max_examples=200, deadline=None)
@given(
    data=st.binary(min_size=1, max_size=70),
    pick=st.integers(0, 10**6),
    flip=st.integers(0, 10**6),
    bit=st.integers(0, 7),
)
def test_invalid_leaf_or_proof_with_one_flipped_bit(data: bytes, pick: int, flip: int, bit: int) -> None:
    hashes = compute_leaf_hashes(data, leaf_bytes=LEAF)
    root = compute_root(data, leaf_bytes=LEAF)
    index = pick % len(hashes)
    leaf = cut(data, index)
    message = bytearray(leaf + encode_proof(compute_proof(hashes, index, size_bytes=len(data), leaf_bytes=LEAF)))
    message[flip % len(message)] ^= 1 << bit
    with pytest.raises((BadProof, MalformedProof)):
        verify_proof(root, bytes(message[: len(leaf)]), decode_proof(bytes(message[len(leaf) :])))


@settings(max_examples=100, deadline=None)
@given(data=st.binary(max_size=80), cuts=st.lists(st.integers(0, 80), max_size=6))
def test_chunks_of_any_size_give_the_same_root(data: bytes, cuts: list[int]) -> None:
    borders = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    builder = RootBuilder(leaf_bytes=LEAF)
    for start, stop in pairwise(borders):
        builder.update(memoryview(data)[start:stop])
    assert builder.finish() == compute_root(data, leaf_bytes=LEAF)
    assert builder.leaf_hashes() == compute_leaf_hashes(data, leaf_bytes=LEAF)


def test_the_root_binds_size_and_leaf_size() -> None:
    roots = {compute_root(bytes(size), leaf_bytes=leaf) for size in range(20) for leaf in (4, 8)}
    assert len(roots) == 40


def test_empty_data_is_one_empty_leaf() -> None:
    root = compute_root(b"", leaf_bytes=LEAF)
    proof = compute_proof(compute_leaf_hashes(b"", leaf_bytes=LEAF), 0, size_bytes=0, leaf_bytes=LEAF)
    verify_proof(root, b"", proof)


def test_invalid_path_that_ends_early_or_late() -> None:
    data = bytes(range(20))
    hashes = compute_leaf_hashes(data, leaf_bytes=LEAF)
    root = compute_root(data, leaf_bytes=LEAF)
    proof = compute_proof(hashes, 1, size_bytes=20, leaf_bytes=LEAF)
    for siblings in (proof.siblings[:-1], (*proof.siblings, bytes(32)), (proof.siblings[0][:-1], *proof.siblings[1:])):
        with pytest.raises(BadProof):
            verify_proof(root, cut(data, 1), dataclasses.replace(proof, siblings=siblings))


def test_invalid_inner_node_offered_as_leaf() -> None:
    """Leaf and node have domains of their own, so a node's preimage proves nothing."""
    data = bytes(range(64)) * 2
    hashes = compute_leaf_hashes(data, leaf_bytes=64)
    root = compute_root(data, leaf_bytes=64)
    fake = compute_proof([b"".join(hashes)], 0, size_bytes=64, leaf_bytes=64)
    with pytest.raises(BadProof):
        verify_proof(root, hashes[0] + hashes[1], fake)


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=120))
def test_decoding_a_proof_is_total(data: bytes) -> None:
    try:
        proof = decode_proof(data)
    except MalformedProof:
        return
    assert encode_proof(proof) == data
