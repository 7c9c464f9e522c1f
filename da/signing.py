"""Signing with a node's receipt key. Verification is in ``da.core.receipt``; keys live in the node's process only."""

from __future__ import annotations

from collections.abc import Sequence

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from da.core.merkle import compute_top
from da.core.receipt import (
    Receipt,
    compute_batch_message,
    compute_receipt_leaf,
    compute_receipt_message,
    key_proof_message,
)
from da.core.types import ReceiptTerms, ShardIndex


def get_public_key(key: Ed25519PrivateKey) -> bytes:
    """Return the 32 bytes that the chain knows."""
    return key.public_key().public_bytes_raw()


def sign_receipt(key: Ed25519PrivateKey, terms: ReceiptTerms, seat: ShardIndex) -> Receipt:
    """Promise to keep the shard of ``seat`` under ``terms``; call it only when the bytes are durable."""
    signature = key.sign(compute_receipt_message(terms, seat))
    return Receipt(seat=seat, key=get_public_key(key), signature=signature)


def sign_batch(key: Ed25519PrivateKey, terms: Sequence[ReceiptTerms], seat: ShardIndex) -> Receipt:
    """Promise to keep the shards of ``seat`` of all blobs under their ``terms``, with one signature."""
    top = compute_top([compute_receipt_leaf(each) for each in terms])
    signature = key.sign(compute_batch_message(top, len(terms), seat))
    return Receipt(seat=seat, key=get_public_key(key), signature=signature)


def sign_key_proof(key: Ed25519PrivateKey, *, genesis_hash: bytes, operator_address: bytes) -> bytes:
    """Return the proof that the operator holds ``key``, for ``registerNode``."""
    return key.sign(key_proof_message(genesis_hash, operator_address))
