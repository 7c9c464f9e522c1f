"""Audits of shards: a leaf with its path, and the fold of a whole shard under fresh coefficients.

The folds that the n seats of a blob answer are code words, one for each functional, because folding commutes with the
code: so they can be judged together without any shard. A seat that keeps no bytes can't answer for coefficients that it
did not know. Here also: what sampling finds, in integers.
"""

from __future__ import annotations

from math import comb

from da.core.errors import MalformedMessage
from da.core.folds import FoldSeed, compute_num_folds
from da.core.merkle import MAX_DEPTH, MerkleProof, decode_proof, encode_proof
from da.core.types import BlobId

NONCE_BYTES = 32
"""A block hash, or random bytes."""

_DOMAIN = b"audit"


def make_audit_seed(blob: BlobId, nonce: bytes, num_shards: int) -> FoldSeed:
    """Return the coefficients of one audit; a header's own folds start with a version byte, so they differ."""
    return FoldSeed(_DOMAIN + blob + nonce, num_folds=compute_num_folds(num_shards))


def encode_leaf_answer(leaf: bytes, proof: MerkleProof) -> bytes:
    """Return what a node answers: u16 length of the proof, the proof, the leaf."""
    encoded = encode_proof(proof)
    return len(encoded).to_bytes(2, "big") + encoded + leaf


def decode_leaf_answer(data: bytes) -> tuple[bytes, MerkleProof]:
    """Decode what ``encode_leaf_answer`` gives.

    Raises:
        MalformedMessage, MalformedProof: anything else.
    """
    if len(data) < 2:
        raise MalformedMessage(f"a leaf answer of {len(data)} bytes")
    stop = 2 + int.from_bytes(data[:2], "big")
    if stop > 2 + 21 + MAX_DEPTH * 32 or stop > len(data):
        raise MalformedMessage(f"a proof of {stop - 2} bytes in an answer of {len(data)}")
    return data[stop:], decode_proof(data[2:stop])


def compute_miss(num_shards: int, num_data: int, num_samples: int) -> tuple[int, int]:
    """Return, as a fraction, how probably samples of distinct shards all succeed though the blob can't be read.

    At worst k - 1 shards are there: C(k - 1, s) / C(n, s). ``compute_miss(12, 8, 4)`` is (35, 495), 7 %.
    """
    samples = min(num_samples, num_shards)
    return comb(num_data - 1, samples), comb(num_shards, samples)


def compute_leaf_miss(num_leaves: int, num_lost: int, num_samples: int) -> tuple[int, int]:
    """Return, as a fraction, how probably samples of distinct leaves miss all of ``num_lost`` lost ones."""
    samples = min(num_samples, num_leaves)
    return comb(num_leaves - num_lost, samples), comb(num_leaves, samples)
