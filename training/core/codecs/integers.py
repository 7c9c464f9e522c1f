"""Small integers in bytes: nibbles, signed bytes, and the checks that go with them.

A 4-bit code c in -7..7 is stored as c + 8, so 0 never occurs and is refused; the low nibble comes first, and
a last unpaired nibble is padded with 0.  A 2-bit code is one of four levels, the lowest bits first; every pattern
means something, so only the padding can be wrong.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from training.core.codecs.protocol import EXPONENT_WINDOW, Slot
from training.core.errors import PayloadRefusedError

INT4_LIMIT = 7
"""Largest 4-bit code; -8 is not used, so that codes are symmetric."""

LEVELS_2BIT = (-3, -1, 1, 3)
"""Odd levels: evenly spaced, none wasted on zero (TRAINING, *The codec*)."""

LEVELS_SPARSE = (-3, -2, 2, 3)
"""Levels of the largest elements of a block: what is left out is what would have been near zero."""

INT8_LIMIT = 127
"""Largest 8-bit code; -128 is not used, likewise."""

MAX_EXPONENT = 24
"""Largest x: with it a sum over 4,096 payloads still fits into int64 (SPEC, *Bounds*)."""


def pack_int4(codes: npt.NDArray[np.int64]) -> bytes:
    """Return codes in -7..7 as nibbles.

    >>> pack_int4(np.array([-7, 7, 0])).hex()
    'f108'
    """
    stored = (codes.reshape(-1) + 8).astype(np.uint8)
    if stored.size % 2:
        stored = np.append(stored, np.uint8(0))
    return (stored[0::2] | (stored[1::2] << 4)).astype(np.uint8).tobytes()


def unpack_int4(data: bytes, count: int) -> npt.NDArray[np.int64]:
    """Return ``count`` codes of valid nibbles."""
    packed = np.frombuffer(data, dtype=np.uint8)
    nibbles = np.empty(2 * packed.size, dtype=np.int64)
    nibbles[0::2] = packed & 15
    nibbles[1::2] = packed >> 4
    return nibbles[:count] - 8


def count_int4_bytes(count: int) -> int:
    """Return the bytes of ``count`` nibbles."""
    return (count + 1) // 2


def check_int4(data: bytes, count: int, slot: Slot) -> None:
    """Refuse a nibble outside -7..7, or a padding that isn't 0. Raises `PayloadRefusedError`."""
    packed = np.frombuffer(data, dtype=np.uint8)
    if count % 2 and packed.size and packed[-1] >> 4 != 0:
        raise PayloadRefusedError(f"padding of {slot.name}", int(packed[-1] >> 4), 0)
    num_zero = int(np.count_nonzero((packed & 15) == 0)) + int(np.count_nonzero((packed >> 4) == 0))
    if num_zero != count % 2:
        raise PayloadRefusedError(f"codes of {slot.name}", f"{num_zero - count % 2} outside -7..7", "none")


def pack_2bit(codes: npt.NDArray[np.int64], levels: tuple[int, ...]) -> bytes:
    """Return codes, each one of four ascending ``levels``, as pairs of bits.

    >>> pack_2bit(np.array([-3, -1, 1, 3, 3]), LEVELS_2BIT).hex()
    'e403'
    """
    stored = np.searchsorted(np.array(levels), codes.reshape(-1)).astype(np.uint8)
    quads = np.zeros(4 * count_2bit_bytes(stored.size), dtype=np.uint8)
    quads[: stored.size] = stored
    parts = quads.reshape(-1, 4)
    return (parts[:, 0] | parts[:, 1] << 2 | parts[:, 2] << 4 | parts[:, 3] << 6).astype(np.uint8).tobytes()


def unpack_2bit(data: bytes, count: int, levels: tuple[int, ...]) -> npt.NDArray[np.int64]:
    """Return ``count`` codes."""
    packed = np.frombuffer(data, dtype=np.uint8)
    stored = np.stack((packed & 3, packed >> 2 & 3, packed >> 4 & 3, packed >> 6), axis=1).reshape(-1)[:count]
    return np.array(levels, dtype=np.int64)[stored]


def count_2bit_bytes(count: int) -> int:
    """Return the bytes of ``count`` 2-bit codes."""
    return (count + 3) // 4


def check_2bit(data: bytes, count: int, slot: Slot) -> None:
    """Refuse a padding that isn't 0. Raises `PayloadRefusedError`."""
    if count % 4 and data and data[-1] >> 2 * (count % 4) != 0:
        raise PayloadRefusedError(f"padding of {slot.name}", data[-1] >> 2 * (count % 4), 0)


def check_exponent(exponent: int, slot: Slot) -> None:
    """Refuse an exponent far from the agreed one. Raises `PayloadRefusedError`."""
    low, high = max(0, slot.exponent - EXPONENT_WINDOW), min(MAX_EXPONENT, slot.exponent + EXPONENT_WINDOW)
    if not low <= exponent <= high:
        raise PayloadRefusedError(f"exponent of {slot.name}", exponent, f"{low}..{high}")
