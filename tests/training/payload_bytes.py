"""Bodies of payloads by SPEC's offsets, written and read without the code under test."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

import numpy as np
import numpy.typing as npt

from chain.core.reference import ElementUpdate
from training.core.codecs.protocol import Slot, SlotKind
from training.core.codecs.registry import count_slot_bytes
from training.core.codecs.words import WORDS

Codes = npt.NDArray[np.int64]
LOW_RANKS = (SlotKind.LOW_RANK_INT4, SlotKind.LOW_RANK_2BIT)
DENSE = (SlotKind.INT8, SlotKind.INT4)


def make_slot(kind: SlotKind, shape: tuple[int, ...], *, rank: int = 0, exponent: int = 8) -> Slot:
    """Return a slot of a kind, whatever it saves."""
    used = rank if kind in LOW_RANKS else 0
    num_bytes = count_slot_bytes(kind, shape, used)
    return Slot(name="tensor", kind=kind, shape=shape, rank=used, exponent=exponent, num_bytes=num_bytes)


def count_scales(slot: Slot) -> int:
    """Return how many scales a body has."""
    count = prod(slot.shape)
    if slot.kind is SlotKind.INT32 or count == 0:
        return 0
    if slot.kind in LOW_RANKS:
        return slot.rank
    if slot.kind is SlotKind.SPARSE_2BIT:
        return -(-count // 4096)
    if slot.kind is SlotKind.VECTOR:
        return -(-count // 576)
    return slot.shape[0] if len(slot.shape) == 2 else 1


def pack_body(slot: Slot, exponent: int, scales: Iterable[int], *codes: Codes) -> bytes:
    """Return a body: codes are elements (exact, dense), P and Q, positions and codes, or nibbles."""
    if slot.kind is SlotKind.INT32:
        return codes[0].astype("<i4").tobytes()
    head = bytes((exponent, *(int(scale) for scale in scales)))
    if slot.kind is SlotKind.INT8:
        return head + codes[0].astype(np.int8).tobytes()
    if slot.kind is SlotKind.VECTOR:
        return head + _pack(codes[0], 4)
    if slot.kind is SlotKind.SPARSE_2BIT:
        return head + _pack(codes[0], 12) + _pack(np.searchsorted((-3, -2, 2, 3), codes[1]), 2)
    if slot.kind is SlotKind.LOW_RANK_2BIT:
        return head + b"".join(_pack((side + 3) // 2, 2) for side in codes)
    return head + b"".join(_pack(side + 8, 4) for side in codes)


def random_body(slot: Slot, rng: np.random.Generator, *, rest: float = 0.2, is_owed: bool = False) -> bytes:
    """Return a canonical body that means anything at all; a share ``rest`` of its groups sends nothing.

    ``is_owed``: a dense update that is not 0 but rounds to it.
    """
    count = prod(slot.shape)
    if slot.kind is SlotKind.INT32:
        return pack_body(slot, 0, (), rng.integers(1 - 2**31, 2**31, count))
    scales = rng.integers(1, 256, count_scales(slot))
    scales[rng.random(scales.size) < rest] = 0
    if slot.kind in DENSE:
        rows = (scales.size, count // max(1, scales.size))
        codes = [_random_columns(slot.kind, rng, rows[::-1], scales).T]
        if is_owed and scales.size and not scales.any():
            scales[0] = 1
    elif slot.kind in LOW_RANKS:
        codes = [_random_columns(slot.kind, rng, (side, slot.rank), scales) for side in slot.shape]
    elif slot.kind is SlotKind.SPARSE_2BIT:
        codes = _random_sparse_codes(count, rng, scales)
    else:
        nibbles = rng.integers(0, 16, -(-count // 6))
        nibbles[np.repeat(scales == 0, 96)[: nibbles.size]] = 0
        _settle_last_nibble(nibbles, count)
        scales[[not nibbles[at : at + 96].any() for at in range(0, nibbles.size, 96)]] = 0
        codes = [nibbles]
    low, high = max(0, slot.exponent - 16), min(24, slot.exponent + 16)
    exponent = int(rng.integers(low, high + 1)) if scales.any() else 0
    return pack_body(slot, exponent, scales, *codes)


def read_element(body: bytes, slot: Slot, index: int) -> ElementUpdate:
    """Return what a body says of one element."""
    count, num_scales = prod(slot.shape), count_scales(slot)
    if slot.kind is SlotKind.INT32:
        value = int.from_bytes(body[4 * index : 4 * index + 4], "little", signed=True)
        return ElementUpdate(exponent=0, scales=(1,), left=(value,), right=(1,))
    scales, codes = body[1 : 1 + num_scales], body[1 + num_scales :]
    if slot.kind in LOW_RANKS:
        row, column = divmod(index, slot.shape[1])
        width = 2 if slot.kind is SlotKind.LOW_RANK_2BIT else 4
        split = (slot.shape[0] * slot.rank * width + 7) // 8
        sides = (codes[:split], row), (codes[split:], column)
        left, right = (
            tuple(_level(_read(side, width, at * slot.rank + r), width) for r in range(slot.rank)) for side, at in sides
        )
        return ElementUpdate(exponent=body[0], scales=tuple(scales), left=left, right=right)
    if slot.kind is SlotKind.SPARSE_2BIT:
        scale, code = scales[index // 4096], _read_sparse(codes, count, index)
    elif slot.kind is SlotKind.VECTOR:
        group, place = divmod(index, 6)
        scale, code = scales[index // 576], _word(codes, group, group - group % 96)[place]
    else:
        scale = scales[index // slot.shape[1] if len(slot.shape) == 2 else 0]
        if slot.kind is SlotKind.INT8:
            code = int.from_bytes(codes[index : index + 1], signed=True)
        else:
            code = _read(codes, 4, index) - 8
    return ElementUpdate(exponent=body[0], scales=(scale,), left=(code,), right=(1,))


def _pack(values: Codes, width: int) -> bytes:
    """Return unsigned integers of ``width`` bits, the lowest bits first."""
    bits = (values.reshape(-1, 1) >> np.arange(width)) & 1
    return np.packbits(bits.astype(np.uint8), bitorder="little").tobytes()


def _read(data: bytes, width: int, index: int) -> int:
    at = width * index
    return int.from_bytes(data[at // 8 : at // 8 + 3], "little") >> at % 8 & (1 << width) - 1


def _level(stored: int, width: int) -> int:
    return 2 * stored - 3 if width == 2 else stored - 8


def _read_sparse(codes: bytes, count: int, index: int) -> int:
    """Look one element up among the positions of its block."""
    whole, rest = divmod(count, 4096)
    kept = 64 * whole + -(-64 * rest // 4096)
    block = index // 4096
    for each in range(64 * block, min(64 * block + 64, kept)):
        if _read(codes, 12, each) == index % 4096:
            return (-3, -2, 2, 3)[_read(codes[(3 * kept + 1) // 2 :], 2, each)]
    return 0


def _word(nibbles: bytes, group: int, first: int) -> tuple[int, ...]:
    number = sum(_read(nibbles, 4, each) << 4 * (group - each) for each in range(max(first, group - 2), group + 1))
    at = 6 * (number % 512)
    return tuple(byte - 256 if byte > 127 else byte for byte in WORDS[at : at + 6])


def _random_columns(kind: SlotKind, rng: np.random.Generator, shape: tuple[int, int], scales: Codes) -> Codes:
    """Return codes, a column a scale: at rest exactly where it is 0."""
    if kind is SlotKind.LOW_RANK_2BIT:
        return np.where(scales == 0, -3, 2 * rng.integers(0, 4, shape) - 3)
    limit = 127 if kind is SlotKind.INT8 else 7
    codes = rng.integers(-limit, limit + 1, shape)
    codes[:1] = np.where(codes.any(axis=0), codes[:1], 1)
    return np.where(scales == 0, 0, codes)


def _random_sparse_codes(count: int, rng: np.random.Generator, scales: Codes) -> list[Codes]:
    positions, codes = [], []
    for block, scale in enumerate(scales):
        length = min(4096, count - 4096 * block)
        kept = -(-64 * length // 4096)
        chosen = np.sort(rng.permutation(length)[:kept])
        positions.append(chosen if scale else np.arange(kept))
        codes.append(rng.choice((-3, -2, 2, 3), kept) if scale else np.full(kept, 3))
    return [np.concatenate(positions), np.concatenate(codes)]


def _settle_last_nibble(nibbles: Codes, count: int) -> None:
    """Make the last nibble the least of those that read alike as far as the tensor goes."""
    last = nibbles.size - 1
    first = last - last % 96

    def reading(nibble: int) -> tuple[int, ...]:
        nibbles[last] = nibble
        return _word(_pack(nibbles, 4), last, first)[: (count - 1) % 6 + 1]

    wanted = reading(int(nibbles[last]))
    nibbles[last] = next(nibble for nibble in range(16) if reading(nibble) == wanted)
