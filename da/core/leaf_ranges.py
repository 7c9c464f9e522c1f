"""Some neighbouring leaves of a shard with one Merkle path for all of them (da/SPEC.md, *Ranges*).

A range [first, stop) of leaves leads to the top with at most two siblings a level: the left one where the range begins
at an odd node, the right one where it ends before the partner of its last node. So a reader of some bytes of a blob
fetches the leaves that hold them, and 64 bytes a level. Invariant: what verifies is what the shard's root names.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import blake3

from da.core.errors import BadProof, MalformedMessage
from da.core.hashing import HASH_BYTES, Tag
from da.core.merkle import Buffer, compute_leaf_hashes, compute_num_leaves, seal_root

MAX_RANGE_BYTES = 4 << 20
"""Bytes of leaves in one answer; a longer range is asked for in parts."""

_NODE = Tag.MERKLE_NODE.value


def build_levels(hashes: Sequence[bytes]) -> tuple[bytes, ...]:
    """Return all levels of the tree over leaf ``hashes``, each as its hashes one after the other, the top last."""
    levels = [b"".join(hashes)]
    while len(levels[-1]) > HASH_BYTES:
        levels.append(_compute_parents(levels[-1]))
    return tuple(levels)


def compute_range_siblings(levels: Sequence[bytes], first: int, stop: int) -> tuple[bytes, ...]:
    """Return what leaves [first, stop) need to lead to the top: from the leaves upwards, left before right."""
    siblings: list[bytes] = []
    for level in levels[:-1]:
        num_nodes = len(level) // HASH_BYTES
        if first & 1:
            siblings.append(level[(first - 1) * HASH_BYTES : first * HASH_BYTES])
        if stop & 1 and stop < num_nodes:
            siblings.append(level[stop * HASH_BYTES : (stop + 1) * HASH_BYTES])
        first, stop = first >> 1, (stop + 1) >> 1
    return tuple(siblings)


def verify_range(
    root: bytes, leaves: Buffer, siblings: Sequence[bytes], *, first: int, size_bytes: int, leaf_bytes: int
) -> None:
    """Check that ``leaves`` are those from number ``first`` on of the shard of ``size_bytes`` under ``root``.

    Raises:
        BadProof: they are not, or the siblings are not as many as such a range has.
    """
    num_nodes = compute_num_leaves(size_bytes, leaf_bytes)
    got_bytes = memoryview(leaves).nbytes
    end = first * leaf_bytes + got_bytes
    if first < 0 or got_bytes == 0 or end > size_bytes or (end % leaf_bytes and end != size_bytes):
        raise BadProof(f"{got_bytes} bytes from leaf {first} on are no whole leaves of a shard of {size_bytes} bytes")
    level = b"".join(compute_leaf_hashes(leaves, leaf_bytes=leaf_bytes))
    stop, rest = first + len(level) // HASH_BYTES, iter(siblings)
    while num_nodes > 1:
        if first & 1:
            level = _take(rest) + level
        if stop & 1 and stop < num_nodes:
            level += _take(rest)
        level = _compute_parents(level)
        first, stop, num_nodes = first >> 1, (stop + 1) >> 1, (num_nodes + 1) >> 1
    if next(rest, None) is not None:
        raise BadProof(f"{len(siblings)} siblings are too many for the range")
    got = seal_root(level, size_bytes=size_bytes, leaf_bytes=leaf_bytes)
    if got != root:
        raise BadProof(f"the leaves lead to root {got.hex()}, expected {root.hex()}")


def encode_range_answer(siblings: Sequence[bytes], leaves: bytes) -> bytes:
    """Return what a node answers: u8 number of siblings, siblings, leaves."""
    return b"".join((len(siblings).to_bytes(1, "big"), *siblings, leaves))


def decode_range_answer(data: bytes) -> tuple[tuple[bytes, ...], memoryview]:
    """Decode what ``encode_range_answer`` gives into siblings and leaves.

    Raises:
        MalformedMessage: anything else.
    """
    stop = 1 + data[0] * HASH_BYTES if data else 1
    if len(data) < stop:
        raise MalformedMessage(f"a range answer of {len(data)} bytes, expected at least {stop}")
    siblings = tuple(data[at : at + HASH_BYTES] for at in range(1, stop, HASH_BYTES))
    return siblings, memoryview(data)[stop:]


def _take(rest: Iterator[bytes]) -> bytes:
    sibling = next(rest, b"")
    if len(sibling) != HASH_BYTES:
        raise BadProof("too few siblings for the range, or one of a wrong size")
    return sibling


def _compute_parents(level: bytes) -> bytes:
    hasher, pair = blake3.blake3, 2 * HASH_BYTES
    whole = len(level) // pair * pair
    parents = [hasher(level[at : at + pair], derive_key_context=_NODE).digest() for at in range(0, whole, pair)]
    return b"".join(parents) + level[whole:]
