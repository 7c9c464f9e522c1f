"""Proofs that a node has a shard: one leaf with its path, the fold of all of it (da/core/audits.py).

Blocking; read the shard once, in constant memory but for 32 bytes a leaf.
"""

from __future__ import annotations

from dataclasses import dataclass

from da.core.audits import make_audit_seed
from da.core.blob import BlobHeader, decode_header
from da.core.errors import MalformedHeader
from da.core.merkle import MerkleProof, RootBuilder, compute_num_leaves, compute_proof
from da.core.types import BlobId, ShardIndex
from da.folding import FoldBuilder
from storage.core.errors import MalformedRequest, UnknownShard
from storage.node.body import ShardReader
from storage.node.engine import StoreEngine

READ_BYTES = 1 << 20
"""Read at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafProof:
    """One leaf of a kept shard."""

    header_bytes: bytes
    """The blob's encoded header."""
    leaf: bytes
    proof: MerkleProof


def prove_leaf(engine: StoreEngine, blob: BlobId, shard: ShardIndex, leaf_index: int) -> LeafProof:
    """Return a leaf with its path.

    Raises: UnknownShard; MalformedRequest for a leaf beyond the shard.
    """
    header_bytes, header = load_header(engine, blob, shard)
    record = engine.get_record(blob, shard)
    num_leaves = compute_num_leaves(record.shard_bytes, header.leaf_bytes)
    if not 0 <= leaf_index < num_leaves:
        raise MalformedRequest(f"leaf {leaf_index} of a shard with {num_leaves} leaves")
    builder, leaf = RootBuilder(leaf_bytes=header.leaf_bytes), b""
    reader, at = engine.open_body(blob, shard), 0
    try:
        while chunk := reader.read(at, READ_BYTES):
            builder.update(chunk)
            at += len(chunk)
        start = leaf_index * header.leaf_bytes
        leaf = read_all(reader, start, min(header.leaf_bytes, record.shard_bytes - start))
    finally:
        reader.close()
    proof = compute_proof(
        builder.leaf_hashes(), leaf_index, size_bytes=record.shard_bytes, leaf_bytes=header.leaf_bytes
    )
    return LeafProof(header_bytes=header_bytes, leaf=leaf, proof=proof)


def fold_shard(engine: StoreEngine, blob: BlobId, shard: ShardIndex, nonce: bytes) -> bytes:
    """Return the fold of a whole shard under an audit's coefficients.

    Raises: UnknownShard.
    """
    _, header = load_header(engine, blob, shard)
    engine.get_record(blob, shard)
    builder = FoldBuilder(make_audit_seed(blob, nonce, header.num_shards))
    reader, at = engine.open_body(blob, shard), 0
    try:
        while chunk := reader.read(at, READ_BYTES):
            builder.update(chunk)
            at += len(chunk)
    finally:
        reader.close()
    return builder.finish()


def is_intact(engine: StoreEngine, blob: BlobId, shard: ShardIndex) -> bool:
    """Tell whether a shard hashes to its root.

    Raises: UnknownShard when it is not there at all.
    """
    _, header = load_header(engine, blob, shard)
    builder = RootBuilder(leaf_bytes=header.leaf_bytes)
    reader, at = engine.open_body(blob, shard), 0
    try:
        while chunk := reader.read(at, READ_BYTES):
            builder.update(chunk)
            at += len(chunk)
    finally:
        reader.close()
    return shard < header.num_shards and builder.finish() == header.shard_roots[shard]


def load_header(engine: StoreEngine, blob: BlobId, shard: ShardIndex) -> tuple[bytes, BlobHeader]:
    """Return the header of a blob of which some shard is kept, encoded and decoded.

    Raises: UnknownShard.
    """
    encoded = engine.get_header(blob)
    try:
        return encoded, decode_header(encoded)
    except MalformedHeader as error:
        raise UnknownShard(blob=blob, shard=shard) from error


def read_all(reader: ShardReader, start: int, num_bytes: int) -> bytes:
    """Return ``num_bytes`` from ``start`` on, or what there is of them."""
    parts: list[bytes] = []
    while num_bytes > 0:
        part = reader.read(start, num_bytes)
        if not part:
            break
        parts.append(part)
        start, num_bytes = start + len(part), num_bytes - len(part)
    return b"".join(parts)
