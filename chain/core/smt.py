"""Sparse Merkle tree over the state, in the ICS23 SmtSpec shape (CHAIN.md, State).

A key's path is sha256(key), read from its most significant bit.  A subtree without keys is 32 zero bytes, one with
a single key is that key's leaf, any other is a node:

    leaf = sha256(00 | sha256(key) | sha256(value))     node = sha256(01 | left | right)

Nodes never change: an update shares all it doesn't touch with the tree before, so a block's candidate tree costs
only its new nodes and is dropped by forgetting it.  The root depends on the pairs alone, not on their history.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256 as _sha256
from typing import TypeAlias

from chain.core.errors import InvalidProof

EMPTY = bytes(32)
"""Root of a tree without keys (ICS23 SmtSpec, EmptyChild)."""

LEAF_PREFIX = b"\x00"
NODE_PREFIX = b"\x01"

_HASH_BITS = 256
_TOP_BIT = 511
"""Bit of a leaf's number that the root decides, as a shift."""

_Leaf: TypeAlias = tuple[bytes, int]
"""(hash, number); the number is sha256(key) | sha256(value), so it sorts by path."""
_Branch: TypeAlias = "tuple[bytes, _Node, _Node]"
"""(hash, left, right)."""
_Node: TypeAlias = "_Leaf | _Branch | None"

_Update: TypeAlias = tuple[int, bytes | None]
"""(number, leaf hash); None to remove, the number's lower half is 0 then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """The way from a key's place up to the root."""

    siblings: tuple[bytes, ...]
    """Hashes beside the way, the root's child first."""
    other_leaf: tuple[bytes, bytes] | None
    """When the key is absent and another leaf stands in its place: that leaf's (path, sha256 of its value)."""


class Tree:
    """An immutable tree."""

    __slots__ = ("_root",)

    def __init__(self, root: _Node = None) -> None:
        """Start from a node; without one, empty."""
        self._root = root

    @property
    def root(self) -> bytes:
        """32 bytes that commit to every pair."""
        return EMPTY if self._root is None else self._root[0]

    def update(self, changes: Iterable[tuple[bytes, bytes | None]]) -> Tree:
        """Return the tree after the changes: (key, value), None to remove; each key at most once."""
        updates = sorted(_make_update(key, value) for key, value in changes)
        return Tree(_apply(self._root, updates, 0, len(updates), _TOP_BIT)) if updates else self

    def prove(self, key: bytes) -> Proof:
        """Prove a key's value, or that it has none."""
        number = int.from_bytes(_sha256(key).digest(), "big") << _HASH_BITS
        siblings: list[bytes] = []
        node = self._root
        shift = _TOP_BIT
        while node is not None and len(node) == 3:
            _, left, right = node
            near, far = (right, left) if number >> shift & 1 else (left, right)
            siblings.append(EMPTY if far is None else far[0])
            node = near
            shift -= 1
        other_leaf = None
        if node is not None and node[1] >> _HASH_BITS != number >> _HASH_BITS:
            preimage = node[1].to_bytes(64, "big")
            other_leaf = (preimage[:32], preimage[32:])
        return Proof(siblings=tuple(siblings), other_leaf=other_leaf)


def compute_leaf(key_hash: bytes, value_hash: bytes) -> bytes:
    """Return the hash of a pair, given the sha256 of both."""
    return _sha256(LEAF_PREFIX + key_hash + value_hash).digest()


def compute_root_from_proof(key_hash: bytes, leaf: bytes, siblings: Sequence[bytes]) -> bytes:
    """Return the root to which a leaf (EMPTY for none) at a key's place leads."""
    path = int.from_bytes(key_hash, "big")
    digest = leaf
    for depth in range(len(siblings) - 1, -1, -1):
        sibling = siblings[depth]
        pair = sibling + digest if path >> (_HASH_BITS - 1 - depth) & 1 else digest + sibling
        digest = _sha256(NODE_PREFIX + pair).digest()
    return digest


def verify(root: bytes, key: bytes, value: bytes | None, proof: Proof) -> None:
    """Check that a key has a value, or none, under a root; raises InvalidProof."""
    key_hash = _sha256(key).digest()
    if len(proof.siblings) > _HASH_BITS or any(len(sibling) != len(EMPTY) for sibling in proof.siblings):
        raise InvalidProof(root, EMPTY)
    if value is not None:
        leaf = compute_leaf(key_hash, _sha256(value).digest())
    elif proof.other_leaf is None:
        leaf = EMPTY
    else:
        other_hash, value_hash = proof.other_leaf
        leaf = compute_leaf(other_hash, value_hash)
        if not _is_neighbour(key_hash, other_hash, len(proof.siblings)) or len(value_hash) != 32:
            raise InvalidProof(root, leaf)
    got = compute_root_from_proof(key_hash, leaf, proof.siblings)
    if got != root:
        raise InvalidProof(root, got)


def _is_neighbour(key_hash: bytes, other_hash: bytes, depth: int) -> bool:
    """Return whether another key shares the first ``depth`` bits of the path, and isn't the key."""
    free_bits = _HASH_BITS - depth
    same = int.from_bytes(key_hash, "big") >> free_bits == int.from_bytes(other_hash, "big") >> free_bits
    return len(other_hash) == 32 and other_hash != key_hash and same


def _make_update(key: bytes, value: bytes | None) -> _Update:
    key_hash = _sha256(key).digest()
    if value is None:
        return int.from_bytes(key_hash, "big") << _HASH_BITS, None
    pair = key_hash + _sha256(value).digest()
    return int.from_bytes(pair, "big"), _sha256(LEAF_PREFIX + pair).digest()


def _apply(node: _Node, updates: list[_Update], start: int, stop: int, shift: int) -> _Node:
    """Return the node after updates[start:stop], at least one, which all belong under it."""
    if node is None or len(node) == 2:
        return _build(_merge_leaf(node, updates[start:stop]), shift)
    _, left, right = node
    number = updates[start][0]
    if stop - start == 1:  # most nodes of a large tree: no search
        middle = start if number >> shift & 1 else stop
    else:
        middle = bisect_left(updates, (number >> shift | 1) << shift, start, stop, key=_get_update_number)
    if start < middle:
        left = _apply(left, updates, start, middle, shift - 1)
    if middle < stop:
        right = _apply(right, updates, middle, stop, shift - 1)
    if left is None or right is None:
        return _join(left, right)
    return _sha256(NODE_PREFIX + left[0] + right[0]).digest(), left, right


def _merge_leaf(leaf: _Leaf | None, updates: list[_Update]) -> list[_Leaf]:
    leaves = [(digest, number) for number, digest in updates if digest is not None]
    if leaf is None:
        return leaves
    path = leaf[1] >> _HASH_BITS
    for number, _ in updates:
        if number >> _HASH_BITS == path:
            return leaves
    leaves.append(leaf)
    leaves.sort(key=_get_number)
    return leaves


def _build(leaves: list[_Leaf], shift: int) -> _Node:
    """Build a subtree from its leaves, by ascending number."""
    if not leaves:
        return None
    if len(leaves) == 1:
        return leaves[0]
    prefix = leaves[0][1] >> shift | 1
    middle = bisect_left(leaves, prefix << shift, key=_get_number)
    left = _build(leaves[:middle], shift - 1)
    right = _build(leaves[middle:], shift - 1)
    return _join(left, right)


def _join(left: _Node, right: _Node) -> _Node:
    """Return the node over two subtrees: a lone leaf moves up."""
    if left is None:
        if right is None or len(right) == 2:
            return right
        return _sha256(NODE_PREFIX + EMPTY + right[0]).digest(), left, right
    if right is None:
        if len(left) == 2:
            return left
        return _sha256(NODE_PREFIX + left[0] + EMPTY).digest(), left, right
    return _sha256(NODE_PREFIX + left[0] + right[0]).digest(), left, right


def _get_number(leaf: _Leaf) -> int:
    return leaf[1]


def _get_update_number(update: _Update) -> int:
    return update[0]
