"""Proofs of a bad encoding convince whoever has the header, and none exists against a good one."""

from __future__ import annotations

import dataclasses
import random
from itertools import combinations
from typing import Any
from unittest import mock

import pytest

from da.client import AsyncBlobClient
from da.codec import compute_shard_root, encode_blob
from da.core import blob as blob_module
from da.core.blob import BlobHeader, compute_blob_id
from da.core.errors import BadProof, InconsistentBlob
from da.core.folds import compute_fold
from da.core.inconsistency import LeafEvidence, find_evidence, verify_evidence
from da.folding import make_seed

DATA = random.Random(3).randbytes(10_001)


def make(*altered: tuple[int, int], k: int = 2, n: int = 4) -> tuple[BlobHeader, dict[int, bytes]]:
    """Encode, alter bytes (shard, column), and hash what came of it."""
    encoded = encode_blob(DATA, num_data=k, num_shards=n, leaf_bytes=256)
    shards = {index: bytearray(b"".join(pieces)) for index, pieces in enumerate(encoded.shards)}
    for shard, column in altered:
        shards[shard][column] ^= 1
    roots = tuple(compute_shard_root(shard, leaf_bytes=256) for shard in shards.values())
    header = dataclasses.replace(encoded.header, shard_roots=roots)
    seed = make_seed(header)
    header = header.with_folds(tuple(compute_fold(seed, bytes(shards[index])) for index in range(k)))
    return header, {index: bytes(shard) for index, shard in shards.items()}


def test_any_k_and_one_more_prove_it() -> None:
    header, shards = make((3, 1000))
    for chosen in combinations(range(4), 3):
        evidence = find_evidence(header, {index: shards[index] for index in chosen})
        if 3 in chosen:
            assert evidence is not None
            assert {leaf.proof.leaf_index for leaf in evidence.leaves} == {1000 // 256}
            verify_evidence(header, evidence)
        else:
            assert evidence is None  # these three are a code word


def test_bad_padding_is_proved_by_one_leaf() -> None:
    """10,001 bytes in two shards of 5,001: the last byte of shard 1 is padding. Parity is made to fit."""
    with mock.patch.object(blob_module, "STRIPE_BYTES", 4001):
        encoded = encode_blob(DATA, num_data=2, num_shards=4, leaf_bytes=256)
        column = 2 * 2001 - 1  # the last of the second stripe
        padded = bytearray(b"".join(encoded.shards[1]))
        padded[column] = 7
        roots = (*encoded.header.shard_roots[:1], compute_shard_root(padded, leaf_bytes=256), *[bytes(32)] * 2)
        header = dataclasses.replace(encoded.header, shard_roots=roots)
        evidence = find_evidence(header, {0: b"".join(encoded.shards[0]), 1: padded})
        assert evidence is not None
        assert [leaf.shard for leaf in evidence.leaves] == [1]
        verify_evidence(header, evidence)
        good = find_evidence(encoded.header, {0: b"".join(encoded.shards[0]), 1: b"".join(encoded.shards[1])})
        assert good is None


def test_invalid_evidence() -> None:
    header, shards = make((3, 1000))
    evidence = find_evidence(header, {index: shards[index] for index in (0, 1, 3)})
    assert evidence is not None
    first, second, third = evidence.leaves
    fourth = find_evidence(header, {index: shards[index] for index in (0, 2, 3)})
    assert fourth is not None
    altered = dataclasses.replace(third, leaf=third.leaf[:-1] + b"x")
    for leaves, reason in [
        ((), "expected one number"),
        ((first, second), "2 leaves, expected 1, or k"),
        ((first,), "padded with zeros"),
        ((first, second, second), "shard 1 twice"),
        ((first, second, fourth.leaves[1]), "of one code word"),
        ((first, second, altered), "leads to root"),
        ((first, second, dataclasses.replace(third, shard=2)), "leads to root"),
        (
            (first, second, dataclasses.replace(third, proof=dataclasses.replace(third.proof, leaf_bytes=512))),
            "the header says 256 in 5001",
        ),
    ]:
        with pytest.raises(BadProof, match=reason):
            verify_evidence(header, LeafEvidence(leaves=leaves))
    with pytest.raises(BadProof):
        verify_evidence(make()[0], evidence)  # against the blob that was encoded well


async def test_a_reader_of_a_bad_blob_can_convince_others(four: Any) -> None:
    header, shards = make((3, 1000))
    blob = compute_blob_id(header)
    for node, shard in zip(four.nodes, shards.values(), strict=True):
        node.shards[blob.hex()], node.headers[blob.hex()] = shard, header
    async with AsyncBlobClient(deadline_seconds=5) as client:
        with pytest.raises(InconsistentBlob) as caught:
            await client.retrieve(blob, committee=four.committee, max_bytes=len(DATA))
    proof = caught.value.proof
    assert isinstance(proof, LeafEvidence)
    verify_evidence(header, proof)
