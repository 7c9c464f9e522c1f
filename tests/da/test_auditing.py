"""Audits: folds of whole shards name the liars, leaves verify, sampling says what it finds."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from da.auditing import judge_folds
from da.codec import encode_blob
from da.core.audits import (
    compute_leaf_miss,
    compute_miss,
    decode_leaf_answer,
    encode_leaf_answer,
    make_audit_seed,
)
from da.core.blob import BlobHeader
from da.core.errors import Malformed, MalformedMessage
from da.core.merkle import compute_leaf_hashes, compute_proof, verify_proof
from da.core.types import BlobId
from da.folding import FoldBuilder

DATA = random.Random(4).randbytes(200_000)


def make(num_data: int, num_shards: int) -> tuple[BlobId, BlobHeader, list[bytearray]]:
    encoded = encode_blob(DATA, num_data=num_data, num_shards=num_shards, leaf_bytes=1024)
    return encoded.blob, encoded.header, [bytearray(b"".join(pieces)) for pieces in encoded.shards]


def fold(blob: BlobId, header: BlobHeader, shard: bytearray, nonce: bytes) -> bytes:
    builder = FoldBuilder(make_audit_seed(blob, nonce, header.num_shards))
    builder.update(shard)
    return builder.finish()


@settings(max_examples=15, deadline=None)
@given(code=st.sampled_from([(2, 4), (4, 6), (6, 12), (16, 24)]), seed=st.integers(0, 10**6), missing=st.integers(0, 2))
def test_liars_are_named_by_one_flipped_byte_each(code: tuple[int, int], seed: int, missing: int) -> None:
    num_data, num_shards = code
    blob, header, shards = make(*code)
    chance = random.Random(seed)
    room = (num_shards - num_data - missing) // 2
    gone = chance.sample(range(num_shards), min(missing, num_shards - num_data))
    liars = sorted(chance.sample([seat for seat in range(num_shards) if seat not in gone], max(0, room)))
    for liar in liars:
        shards[liar][chance.randrange(len(shards[liar]))] ^= chance.randrange(1, 256)
    nonce = chance.randbytes(32)
    folds = {seat: fold(blob, header, shards[seat], nonce) for seat in range(num_shards) if seat not in gone}
    verdict = judge_folds(header, folds)
    assert verdict.is_certain == (len(folds) > num_data)
    if verdict.is_certain:
        assert list(verdict.liars) == liars


def test_too_many_liars_are_not_named() -> None:
    blob, header, shards = make(4, 6)
    nonce = bytes(32)
    folds = {seat: fold(blob, header, shards[seat], nonce) for seat in range(6)}
    assert judge_folds(header, folds).liars == ()
    assert judge_folds(header, {seat: folds[seat] for seat in range(4)}).is_certain is False
    folds[0], folds[3] = bytes(len(folds[0])), bytes(len(folds[0]))
    verdict = judge_folds(header, folds)
    assert not verdict.is_certain
    assert verdict.liars == ()


def test_a_nonce_gives_other_folds() -> None:
    blob, header, shards = make(2, 4)
    assert fold(blob, header, shards[0], bytes(32)) != fold(blob, header, shards[0], b"1" * 32)


def test_leaf_answers_come_back() -> None:
    _, header, shards = make(2, 4)
    hashes = compute_leaf_hashes(shards[1], leaf_bytes=1024)
    proof = compute_proof(hashes, 7, size_bytes=len(shards[1]), leaf_bytes=1024)
    leaf, decoded = decode_leaf_answer(encode_leaf_answer(bytes(shards[1][7 * 1024 : 8 * 1024]), proof))
    verify_proof(header.shard_roots[1], leaf, decoded)
    with pytest.raises(MalformedMessage):
        decode_leaf_answer(b"\xff\xff")


@given(st.binary(max_size=100))
def test_strange_leaf_answers_are_refused_by_name(data: bytes) -> None:
    try:
        decode_leaf_answer(data)
    except Malformed:
        return


def test_sampling_figures_of_the_design() -> None:
    """DA.md: 8 of 12, 4 samples miss 7 %; 16 of 32, 8: 6e-4; 32 of 128, 10: 2e-7; and leaves of one shard."""

    def value(fraction: tuple[int, int]) -> float:
        return fraction[0] / fraction[1]

    assert value(compute_miss(12, 8, 4)) == pytest.approx(0.07, rel=0.02)
    assert value(compute_miss(32, 16, 8)) == pytest.approx(6e-4, rel=0.05)
    assert value(compute_miss(128, 32, 10)) == pytest.approx(2e-7, rel=0.1)
    assert compute_miss(4, 2, 4) == (0, 1)
    assert value(compute_leaf_miss(10_000, 500, 30)) == pytest.approx(0.21, rel=0.03)
    assert value(compute_leaf_miss(10_000, 500, 100)) == pytest.approx(0.006, rel=0.05)
