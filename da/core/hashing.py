"""Every hash and signature domain of the project, in one place (da/SPEC.md, *Hashes*).

The hash is BLAKE3; a domain is separated by BLAKE3's own key derivation mode, whose context string is the tag.
Invariant: two values of different meaning never share a digest, because no two tags are equal and none is a
parameter. Each tag has a known answer in ``tests/vectors/hash_tags.json``; a new tag needs a new line there.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

import blake3

HASH_BYTES = 32
"""Length of every digest and Merkle root."""


class Tag(StrEnum):
    """A domain: the context string of BLAKE3's key derivation mode. Changing one changes the format."""

    MERKLE_LEAF = "archipelago merkle leaf v1"
    """One leaf of bytes."""
    MERKLE_NODE = "archipelago merkle node v1"
    """Left child, right child."""
    MERKLE_ROOT = "archipelago merkle root v1"
    """Size, leaf size and topmost node."""
    BLOB = "archipelago da blob v1"
    """An encoded blob header; the digest is the blob id."""
    FOLD = "archipelago da fold v1"
    """Code, size and shard roots of a blob; the extendable digest is the coefficients of its folds."""
    RECEIPT = "archipelago da receipt v1"
    """A storage node's promise; the digest is what it signs."""
    RECEIPT_LEAF = "archipelago da receipt leaf v1"
    """One blob's terms, without a seat, in a batch that is signed at once."""
    RECEIPT_BATCH = "archipelago da receipt batch v1"
    """A storage node's promise of a whole batch; the digest is what it signs."""
    SEAL = "archipelago da seal v1"
    """A secret key and a salt; the digest is the key of one sealed blob."""
    SEAL_SALT = "archipelago da seal salt v1"
    """A secret key and a plain blob; the digest's start is the blob's salt."""
    KEY_PROOF = "archipelago da key proof v1"
    """A node proves that it holds its receipt key; the digest is what it signs."""
    STATE = "archipelago training state v1"
    """The agreed training state."""
    TENSOR = "archipelago training tensor v1"
    """One tensor of the agreed training state."""
    RANDOM = "archipelago training random v1"
    """Seeds of data order, warm starts and drawings, from (run seed, round, member)."""
    WORKER_STATE = "archipelago training worker state v1"
    """A worker's own durable state."""


def compute_hash(tag: Tag, *parts: bytes | bytearray | memoryview) -> bytes:
    """Return the 32-byte digest of the concatenated ``parts`` in the domain ``tag``.

    The parts are joined without separators, so the caller fixes their lengths.
    """
    if len(parts) == 1:
        return blake3.blake3(parts[0], derive_key_context=tag.value).digest()
    return blake3.blake3(b"".join(parts), derive_key_context=tag.value).digest()


def compute_stream_hash(tag: Tag, chunks: Iterable[bytes | bytearray | memoryview], *, num_bytes: int = 32) -> bytes:
    """Return ``num_bytes`` of the extendable digest of ``chunks`` in the domain ``tag``."""
    hasher = blake3.blake3(derive_key_context=tag.value)
    for chunk in chunks:
        hasher.update(chunk)
    return hasher.digest(length=num_bytes)


def compute_digest(data: bytes | bytearray | memoryview) -> bytes:
    """Return the plain BLAKE3 digest of ``data``, as any other implementation gives it (payload digests)."""
    return blake3.blake3(data).digest()
