"""A Merkle mountain range: an append-only list under a root, of which only the peaks are kept (log2 of its length).

    leaf = given, 32 bytes      node = sha256(ACCUMULATOR_NODE_TAG | left | right)
    root = sha256(ACCUMULATOR_ROOT_TAG | length u64 | peak | peak ...), the tallest first

The peaks stand over perfect trees of the sizes in the length's binary form: 11 leaves have peaks over 8, 2 and 1.
Invariant: a root commits to every leaf and its place; a longer list keeps the nodes of a shorter one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from chain.core.hashing import ACCUMULATOR_NODE_TAG, ACCUMULATOR_ROOT_TAG, sha256

MAX_LENGTH = 2**48
"""Leaves; far more than rounds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accumulator:
    """The list so far."""

    length: int
    """Leaves."""
    peaks: tuple[bytes, ...]
    """Roots of the perfect trees, the tallest first."""


EMPTY_ACCUMULATOR = Accumulator(length=0, peaks=())


def append(accumulator: Accumulator, leaf: bytes) -> Accumulator:
    """Return the accumulator with one more leaf."""
    peaks = list(accumulator.peaks)
    node, size = leaf, accumulator.length
    while size & 1:
        node = _join(peaks.pop(), node)
        size >>= 1
    return Accumulator(length=accumulator.length + 1, peaks=(*peaks, node))


def compute_root(accumulator: Accumulator) -> bytes:
    """Return 32 bytes that commit to all leaves and their number."""
    return sha256(ACCUMULATOR_ROOT_TAG + accumulator.length.to_bytes(8, "big") + b"".join(accumulator.peaks))


def prove(leaves: Sequence[bytes], index: int) -> tuple[bytes, ...]:
    """Return the siblings from a leaf up to its peak; needs all leaves."""
    start, size = _find_tree(len(leaves), index)
    level = list(leaves[start : start + size])
    position = index - start
    siblings = []
    while len(level) > 1:
        siblings.append(level[position ^ 1])
        level = [_join(left, right) for left, right in zip(level[::2], level[1::2], strict=True)]
        position >>= 1
    return tuple(siblings)


def is_member(accumulator: Accumulator, index: int, leaf: bytes, siblings: Sequence[bytes]) -> bool:
    """Tell whether a leaf stands at a place; total on anything a stranger sends."""
    length = accumulator.length
    if not 0 <= index < length <= MAX_LENGTH or len(accumulator.peaks) != length.bit_count():
        return False
    start, size = _find_tree(length, index)
    if len(siblings) != size.bit_length() - 1:
        return False
    node, position = leaf, index - start
    for sibling in siblings:
        node = _join(sibling, node) if position & 1 else _join(node, sibling)
        position >>= 1
    return node == accumulator.peaks[(length >> size.bit_length()).bit_count()]


def _find_tree(length: int, index: int) -> tuple[int, int]:
    """Return (first leaf, size) of the perfect tree that holds a leaf."""
    start = 0
    for bit in range(length.bit_length() - 1, -1, -1):
        size = 1 << bit
        if length & size:
            if index < start + size:
                return start, size
            start += size
    raise IndexError(f"leaf {index} of {length}")


def _join(left: bytes, right: bytes) -> bytes:
    return sha256(ACCUMULATOR_NODE_TAG + left + right)
