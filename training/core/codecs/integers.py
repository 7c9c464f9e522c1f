"""Small integers in bytes: nibbles, signed bytes, and the checks that go with them.

A 4-bit code c in -7..7 is stored as c + 8, so 0 never occurs and is refused; the low nibble comes first, and
a last unpaired nibble is padded with 0.  A 2-bit code is one of four levels, the lowest bits first; every pattern
means something, so only the padding can be wrong.

Bytes are canonical: no bit of a valid body can change without changing what it says.  So a scale is 0 exactly where
nothing is sent, the codes under it are at rest, and an exponent that counts nothing is 0 (SPEC, *Payloads*).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from training.core.codecs.protocol import EXPONENT_WINDOW, Slot
from training.core.errors import PayloadRefusedError

INT4_LIMIT = 7
"""Largest 4-bit code; -8 is not used, so that codes are symmetric."""

INT4_REST = 8
"""The nibble of code 0."""

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
    stored = (codes.reshape(-1) + INT4_REST).astype(np.uint8)
    if stored.size % 2:
        stored = np.append(stored, np.uint8(0))
    return (stored[0::2] | (stored[1::2] << 4)).astype(np.uint8).tobytes()


def unpack_int4(data: bytes, count: int) -> npt.NDArray[np.int64]:
    """Return ``count`` codes of valid nibbles."""
    return read_nibbles(data)[:count].astype(np.int64) - INT4_REST


def read_nibbles(data: bytes) -> npt.NDArray[np.uint8]:
    """Return all nibbles as they are stored, a padding too."""
    packed = np.frombuffer(data, dtype=np.uint8)
    nibbles = np.empty(2 * packed.size, dtype=np.uint8)
    np.bitwise_and(packed, 15, out=nibbles[0::2])
    np.right_shift(packed, 4, out=nibbles[1::2])
    return nibbles


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
    return np.array(levels, dtype=np.int64)[read_pairs(data)[:count]]


def read_pairs(data: bytes) -> npt.NDArray[np.uint8]:
    """Return all pairs of bits as they are stored, a padding too."""
    packed = np.frombuffer(data, dtype=np.uint8)
    return np.stack((packed & 3, packed >> 2 & 3, packed >> 4 & 3, packed >> 6), axis=1).reshape(-1)


def count_2bit_bytes(count: int) -> int:
    """Return the bytes of ``count`` 2-bit codes."""
    return (count + 3) // 4


def check_2bit(data: bytes, count: int, slot: Slot) -> None:
    """Refuse a padding that isn't 0. Raises `PayloadRefusedError`."""
    if count % 4 and data and data[-1] >> 2 * (count % 4) != 0:
        raise PayloadRefusedError(f"padding of {slot.name}", data[-1] >> 2 * (count % 4), 0)


def check_scales(scales: npt.NDArray[np.uint8], is_said: npt.NDArray[np.bool_], slot: Slot) -> None:
    """Refuse a scale of 0 over codes, and another one over none: nobody would read either.

    ``is_said`` is true where codes are not at rest. Raises `PayloadRefusedError`.
    """
    num_bad = int(np.count_nonzero((scales != 0) != is_said))
    if num_bad != 0:
        got = f"{num_bad} of {scales.size} are 0 over codes, or not over none"
        raise PayloadRefusedError(f"scales of {slot.name}", got, "0 exactly where nothing is sent")


def choose_exponent(scales: npt.NDArray[np.integer], slot: Slot) -> int:
    """Return x as a body says it: the agreed one, and 0 where there is nothing that it would count."""
    return slot.exponent if scales.any() else 0


def check_exponent(exponent: int, scales: npt.NDArray[np.uint8], slot: Slot) -> None:
    """Refuse an exponent far from the agreed one, or one that counts nothing and isn't 0.

    Raises `PayloadRefusedError`.
    """
    if not scales.any():
        if exponent != 0:
            raise PayloadRefusedError(f"exponent of {slot.name}", exponent, "0 where nothing is sent")
        return
    low, high = max(0, slot.exponent - EXPONENT_WINDOW), min(MAX_EXPONENT, slot.exponent + EXPONENT_WINDOW)
    if not low <= exponent <= high:
        raise PayloadRefusedError(f"exponent of {slot.name}", exponent, f"{low}..{high}")
