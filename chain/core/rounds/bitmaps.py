"""Small sets as integers: bit i stands for participant, update or part i."""

from __future__ import annotations

from collections.abc import Iterator


def compute_full(size: int) -> int:
    """Return the set of 0..size-1."""
    return (1 << size) - 1


def iterate_bits(bitmap: int) -> Iterator[int]:
    """Yield the members of a set, ascending."""
    while bitmap:
        lowest = bitmap & -bitmap
        yield lowest.bit_length() - 1
        bitmap ^= lowest
