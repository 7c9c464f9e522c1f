"""Merkle trees over fixed-size leaves (da/SPEC.md, *Trees*).

Neighbours are paired level by level; a last node without a neighbour rises unchanged, which is the shape of RFC 6962.
Leaf, node and root have domains of their own, and the root binds total size and leaf size. Invariant: one root, one
byte string, one cut. Used for shards (1 KiB or 64 KiB leaves) and for the agreed training state.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import blake3

from da.core.errors import BadProof, MalformedProof
from da.core.hashing import HASH_BYTES, Tag, compute_hash
from da.core.types import ShardRoot

Buffer = bytes | bytearray | memoryview

PAYLOAD_LEAF_BYTES = 1024
"""Leaf of payload and state blobs: a leaf and its path fit into a transaction (DESIGN 5)."""

BULK_LEAF_BYTES = 65536
"""Leaf of all other blobs: hashing runs at the full speed of BLAKE3 (DA.md, 7.7 GB/s)."""

MAX_DEPTH = 48
"""Length of the longest path that is read: 2^48 leaves are beyond the largest blob."""

_LEAF = Tag.MERKLE_LEAF.value
_NODE = Tag.MERKLE_NODE.value


@dataclass(frozen=True, slots=True, kw_only=True)
class MerkleProof:
    """The path from one leaf to the root."""

    leaf_index: int
    """Position of the leaf, 0 .. num_leaves - 1."""
    size_bytes: int
    """Bytes under the root."""
    leaf_bytes: int
    """Size of every leaf but the last."""
    siblings: tuple[bytes, ...]
    """Neighbours from the leaf upwards, 32 bytes each; levels at which the node has none are left out."""


def compute_num_leaves(size_bytes: int, leaf_bytes: int) -> int:
    """Return the number of leaves: ceil(size / leaf), and one empty leaf for no bytes."""
    return max(1, -(-size_bytes // leaf_bytes))


def compute_leaf_hashes(data: Buffer, *, leaf_bytes: int) -> list[bytes]:
    """Return the hash of every leaf of ``data``."""
    view = memoryview(data).cast("B") if len(data) else memoryview(b"")
    hasher = blake3.blake3
    return [
        hasher(view[start : start + leaf_bytes], derive_key_context=_LEAF).digest()
        for start in range(0, max(1, len(view)), leaf_bytes)
    ]


def compute_root(data: Buffer, *, leaf_bytes: int) -> ShardRoot:
    """Return the root over ``data`` cut into leaves of ``leaf_bytes``."""
    hashes = compute_leaf_hashes(data, leaf_bytes=leaf_bytes)
    return seal_root(compute_top(hashes), size_bytes=memoryview(data).nbytes, leaf_bytes=leaf_bytes)


def compute_top(hashes: Sequence[bytes]) -> bytes:
    """Return the topmost node over at least one hash (leaf hashes, or roots of smaller trees)."""
    level = list(hashes)
    while len(level) > 1:
        level = _compute_parents(level)
    return level[0]


def seal_root(top: bytes, *, size_bytes: int, leaf_bytes: int) -> ShardRoot:
    """Bind the topmost node to the sizes: hash(size u64 || leaf size u32 || top)."""
    return ShardRoot(compute_hash(Tag.MERKLE_ROOT, size_bytes.to_bytes(8, "big") + leaf_bytes.to_bytes(4, "big") + top))


def compute_proof(hashes: Sequence[bytes], leaf_index: int, *, size_bytes: int, leaf_bytes: int) -> MerkleProof:
    """Return the path of leaf ``leaf_index`` among the leaf ``hashes``."""
    siblings: list[bytes] = []
    level = list(hashes)
    index = leaf_index
    while len(level) > 1:
        if index ^ 1 < len(level):
            siblings.append(level[index ^ 1])
        level = _compute_parents(level)
        index >>= 1
    return MerkleProof(leaf_index=leaf_index, size_bytes=size_bytes, leaf_bytes=leaf_bytes, siblings=tuple(siblings))


def verify_proof(root: bytes, leaf: Buffer, proof: MerkleProof) -> None:
    """Check that ``leaf`` is leaf ``proof.leaf_index`` under ``root``.

    Raises:
        BadProof: it is not, or the proof has impossible sizes.
    """
    num_leaves = compute_num_leaves(proof.size_bytes, proof.leaf_bytes)
    if not 0 <= proof.leaf_index < num_leaves:
        raise BadProof(f"leaf {proof.leaf_index} of {num_leaves}")
    start = proof.leaf_index * proof.leaf_bytes
    expected_bytes = min(proof.leaf_bytes, proof.size_bytes - start)
    if memoryview(leaf).nbytes != expected_bytes:
        raise BadProof(f"leaf {proof.leaf_index} has {memoryview(leaf).nbytes} bytes, expected {expected_bytes}")
    top = compute_path_top(compute_hash(Tag.MERKLE_LEAF, leaf), proof.leaf_index, num_leaves, proof.siblings)
    got = seal_root(top, size_bytes=proof.size_bytes, leaf_bytes=proof.leaf_bytes)
    if got != root:
        raise BadProof(f"leaf {proof.leaf_index} leads to root {got.hex()}, expected {root.hex()}")


def compute_paths(hashes: Sequence[bytes]) -> list[tuple[bytes, ...]]:
    """Return the siblings of every one of ``hashes``, from the leaf upwards, as in a proof."""
    levels = [list(hashes)]
    while len(levels[-1]) > 1:
        levels.append(_compute_parents(levels[-1]))
    return [
        tuple(
            level[index >> height ^ 1] for height, level in enumerate(levels[:-1]) if index >> height ^ 1 < len(level)
        )
        for index in range(len(hashes))
    ]


def compute_num_siblings(index: int, num_nodes: int) -> int:
    """Return the length of the path of node ``index`` of ``num_nodes``."""
    num_siblings = 0
    while num_nodes > 1:
        num_siblings += index ^ 1 < num_nodes
        index >>= 1
        num_nodes = (num_nodes + 1) >> 1
    return num_siblings


def compute_path_top(node: bytes, index: int, num_nodes: int, siblings: Sequence[bytes]) -> bytes:
    """Return the top that ``siblings`` lead to from hash ``node``, number ``index`` of ``num_nodes``.

    Raises:
        BadProof: too few or too many siblings, or one of a wrong size.
    """
    rest = iter(siblings)
    while num_nodes > 1:
        if index ^ 1 < num_nodes:
            sibling = next(rest, None)
            if sibling is None or len(sibling) != HASH_BYTES:
                raise BadProof(f"path of {len(siblings)} siblings is too short or has a wrong size")
            pair = sibling + node if index & 1 else node + sibling
            node = compute_hash(Tag.MERKLE_NODE, pair)
        index >>= 1
        num_nodes = (num_nodes + 1) >> 1
    if next(rest, None) is not None:
        raise BadProof(f"path of {len(siblings)} siblings is too long")
    return node


def verify_path(top: bytes, node: bytes, index: int, num_nodes: int, siblings: Sequence[bytes]) -> None:
    """Check that hash ``node`` is number ``index`` of ``num_nodes`` under the unsealed ``top``.

    Raises:
        BadProof: it is not.
    """
    got = compute_path_top(node, index, num_nodes, siblings)
    if got != top:
        raise BadProof(f"node {index} leads to {got.hex()}, expected {top.hex()}")


class RootBuilder:
    """Computes a root while the bytes pass by, in chunks of any size; holds less than one leaf.

    ``builder.update(chunk)`` any number of times, then ``builder.finish()``.
    """

    __slots__ = ("_hashes", "_leaf_bytes", "_partial", "size_bytes")

    def __init__(self, *, leaf_bytes: int) -> None:
        self._leaf_bytes = leaf_bytes
        self._partial = bytearray()
        self._hashes: list[bytes] = []
        self.size_bytes = 0

    def update(self, chunk: Buffer) -> None:
        """Take the next bytes."""
        view = memoryview(chunk)
        self.size_bytes += len(view)
        start = 0
        if self._partial:
            start = min(self._leaf_bytes - len(self._partial), len(view))
            self._partial += view[:start]
            if len(self._partial) < self._leaf_bytes:
                return
            self._hashes.append(compute_hash(Tag.MERKLE_LEAF, self._partial))
            self._partial = bytearray()
        end = start + (len(view) - start) // self._leaf_bytes * self._leaf_bytes
        if end > start:
            self._hashes += compute_leaf_hashes(view[start:end], leaf_bytes=self._leaf_bytes)
        self._partial += view[end:]

    def extend(self, other: RootBuilder) -> None:
        """Take what ``other`` took; this one must have taken whole leaves so far, and both have leaves of one size."""
        assert not self._partial, f"{len(self._partial)} bytes of a leaf, expected whole ones"
        assert self._leaf_bytes == other._leaf_bytes, f"leaves of {other._leaf_bytes} bytes, not {self._leaf_bytes}"
        self._hashes += other._hashes
        self._partial = other._partial
        self.size_bytes += other.size_bytes

    def finish(self) -> ShardRoot:
        """Return the root of everything taken so far."""
        return seal_root(compute_top(self.leaf_hashes()), size_bytes=self.size_bytes, leaf_bytes=self._leaf_bytes)

    def leaf_hashes(self) -> list[bytes]:
        """Return the hashes of all leaves so far, for proofs."""
        if self._partial or not self._hashes:
            return [*self._hashes, compute_hash(Tag.MERKLE_LEAF, self._partial)]
        return list(self._hashes)


def encode_proof(proof: MerkleProof) -> bytes:
    """Encode: leaf index u64, size u64, leaf size u32, number of siblings u8, siblings."""
    return b"".join(
        (
            proof.leaf_index.to_bytes(8, "big"),
            proof.size_bytes.to_bytes(8, "big"),
            proof.leaf_bytes.to_bytes(4, "big"),
            len(proof.siblings).to_bytes(1, "big"),
            *proof.siblings,
        )
    )


def decode_proof(data: bytes) -> MerkleProof:
    """Decode what ``encode_proof`` gives.

    Raises:
        MalformedProof: anything else.
    """
    if len(data) < 21:
        raise MalformedProof(f"{len(data)} bytes, expected at least 21")
    num_siblings = data[20]
    if num_siblings > MAX_DEPTH or len(data) != 21 + num_siblings * HASH_BYTES:
        raise MalformedProof(f"{len(data)} bytes for {num_siblings} siblings")
    leaf_bytes = int.from_bytes(data[16:20], "big")
    if leaf_bytes == 0:
        raise MalformedProof("leaves of 0 bytes")
    return MerkleProof(
        leaf_index=int.from_bytes(data[:8], "big"),
        size_bytes=int.from_bytes(data[8:16], "big"),
        leaf_bytes=leaf_bytes,
        siblings=tuple(data[at : at + HASH_BYTES] for at in range(21, len(data), HASH_BYTES)),
    )


def _compute_parents(level: Sequence[bytes]) -> list[bytes]:
    hasher = blake3.blake3
    pairs: Iterator[bytes] = iter(level)
    parents = [
        hasher(left + right, derive_key_context=_NODE).digest() for left, right in zip(pairs, pairs, strict=False)
    ]
    if len(level) % 2:
        parents.append(level[-1])
    return parents
