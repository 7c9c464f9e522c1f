"""A storage node's signed promise to keep one shard (DESIGN 5, *Receipt*).

What is signed is a digest of a fixed layout, so a signature fits one chain, committee, blob, seat, tier and expiry
and nothing else. A node signs only when the bytes are as durable as the tier promises.

Preimage, big-endian, hashed in the domain ``Tag.RECEIPT``::

    offset  0  32   genesis hash
           32  u64  committee epoch
           40  32   blob id
           72  u64  size of the blob in bytes
           80  u16  seat
           82  u8   tier
           83  u64  expiry height

A batch of blobs is signed at once. Its leaves are ``Tag.RECEIPT_LEAF`` over the same layout without the seat, its
nodes those of da/core/merkle.py, and what a seat signs is ``Tag.RECEIPT_BATCH`` over::

    offset  0  32   top of the tree
           32  u32  number of blobs, 1 .. 4096
           36  u16  seat

So one path serves the signatures of all seats.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from nacl.exceptions import CryptoError
from nacl.signing import VerifyKey

from da.core.hashing import HASH_BYTES, Tag, compute_hash
from da.core.types import ReceiptTerms, ShardIndex

KEY_BYTES = 32
"""An ed25519 public key."""

SIGNATURE_BYTES = 64
"""An ed25519 signature."""

MAX_BATCH_BLOBS = 4096
"""Blobs of one batch: paths stay below 13 hashes."""

REMEMBERED_SIGNATURES = 16_384
"""Verdicts on (key, signature, message), 8 MB at most: the chain checks them when a transaction comes and needs them
when its block does, and all blobs of a batch share theirs."""

_VERDICTS: OrderedDict[tuple[bytes, bytes, bytes], bool] = OrderedDict()
"""A memo of ``is_signature_valid``: it changes how long an answer takes, never the answer."""

ADDRESS_BYTES = 20
"""A chain address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """One seat's signature under the terms."""

    seat: ShardIndex
    """Which seat signed; equals the shard it keeps."""
    key: bytes
    """Its ed25519 public key, 32 bytes."""
    signature: bytes
    """64 bytes over ``compute_receipt_message(terms, seat)``."""


def compute_receipt_message(terms: ReceiptTerms, seat: ShardIndex) -> bytes:
    """Return the 32 bytes that ``seat`` signs under ``terms`` (layout above)."""
    return compute_hash(
        Tag.RECEIPT,
        terms.genesis_hash,
        terms.epoch.to_bytes(8, "big"),
        terms.blob,
        terms.size_bytes.to_bytes(8, "big"),
        seat.to_bytes(2, "big"),
        int(terms.tier).to_bytes(1, "big"),
        terms.expiry.to_bytes(8, "big"),
    )


def compute_receipt_leaf(terms: ReceiptTerms) -> bytes:
    """Return the leaf of a blob in a batch."""
    return compute_hash(
        Tag.RECEIPT_LEAF,
        terms.genesis_hash,
        terms.epoch.to_bytes(8, "big"),
        terms.blob,
        terms.size_bytes.to_bytes(8, "big"),
        int(terms.tier).to_bytes(1, "big"),
        terms.expiry.to_bytes(8, "big"),
    )


def compute_batch_message(top: bytes, num_blobs: int, seat: ShardIndex) -> bytes:
    """Return the 32 bytes that ``seat`` signs for a batch (layout above)."""
    return compute_hash(Tag.RECEIPT_BATCH, top, num_blobs.to_bytes(4, "big"), seat.to_bytes(2, "big"))


def key_proof_message(genesis_hash: bytes, operator_address: bytes) -> bytes:
    """Return the 32 bytes that a node's receipt key signs to register under ``operator_address`` (20 bytes)."""
    assert len(genesis_hash) == HASH_BYTES
    assert len(operator_address) == ADDRESS_BYTES
    return compute_hash(Tag.KEY_PROOF, genesis_hash, operator_address)


def is_key_proof_valid(key: bytes, proof: bytes, *, genesis_hash: bytes, operator_address: bytes) -> bool:
    """Tell whether ``proof`` shows that the operator holds ``key``; total on any bytes."""
    return is_signature_valid(key, proof, key_proof_message(genesis_hash, operator_address))


def is_signature_valid(key: bytes, signature: bytes, message: bytes) -> bool:
    """Tell whether ``signature`` is ``key``'s ed25519 signature of ``message``; total on any bytes.

    libsodium's verdict (RFC 8032, 5.1.7, without cofactor; keys and points of small order are refused), for everybody
    alike: half of OpenSSL's time, and other libraries differ at the edges.
    """
    verdict = _VERDICTS.get((key, signature, message))
    if verdict is None:
        verdict = _compute_verdict(key, signature, message)
        remember_verdict(key, signature, message, is_valid=verdict)
    return verdict


def remember_verdict(key: bytes, signature: bytes, message: bytes, *, is_valid: bool) -> None:
    """Spare ``is_signature_valid`` a check whose verdict is known, as from another process of this program."""
    _VERDICTS[key, signature, message] = is_valid
    if len(_VERDICTS) > REMEMBERED_SIGNATURES:
        _VERDICTS.popitem(last=False)  # one step of the interpreter: a thread may check at the same time


def _compute_verdict(key: bytes, signature: bytes, message: bytes) -> bool:
    if len(key) != KEY_BYTES or len(signature) != SIGNATURE_BYTES:
        return False
    try:
        VerifyKey(key).verify(message, signature)
    except CryptoError:
        return False
    return True


def is_receipt_valid(receipt: Receipt, terms: ReceiptTerms, *, key: bytes) -> bool:
    """Tell whether ``receipt`` is the promise of the seat with ``key`` under ``terms``."""
    return receipt.key == key and is_signature_valid(
        key, receipt.signature, compute_receipt_message(terms, receipt.seat)
    )
