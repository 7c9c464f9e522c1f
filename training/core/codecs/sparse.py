"""The largest elements of each block, in two bits and with one 8-bit scale a block (SPEC, *Payloads*; SparseLoCo).

A tensor is cut, row-major, into blocks of 4,096 elements; of each block 64 are sent, of a shorter last one the same
share, rounded up.  Body: x u8; scale u8 for each block; positions inside the block, 12 bits each, ascending, two in
three bytes; codes in two bits.  Element = code * scale * 2^x; all others are 0.  A block of scale 0 is at rest: the
first positions, and codes 3.
"""

from __future__ import annotations

from math import prod

import numpy as np
import numpy.typing as npt
import torch

from training.core.codecs.integers import (
    LEVELS_SPARSE,
    check_2bit,
    check_exponent,
    check_scales,
    choose_exponent,
    count_2bit_bytes,
    pack_2bit,
    unpack_2bit,
)
from training.core.codecs.protocol import Compressed, Slot
from training.core.errors import PayloadRefusedError

BLOCK_ELEMENTS = 4096
"""Elements a block: a position fits 12 bits (SparseLoCo's chunk)."""

KEPT_IN_BLOCK = 64
"""Elements sent of a whole block (SparseLoCo)."""

_REST_CODE = LEVELS_SPARSE[-1]
"""Code of a block that isn't sent: what blocks of zeros have always had."""

_BORDERS = (2.2, 2.5, 2.8)
"""Where the larger level begins, in units of the step: tried for each block."""

_NUM_STEPS = 12
"""Steps tried for each block, between largest/3.6 and largest/2."""


def count_kept(num_elements: int) -> int:
    """Return how many elements of a tensor are sent."""
    whole, rest = divmod(num_elements, BLOCK_ELEMENTS)
    return whole * KEPT_IN_BLOCK + -(-rest * KEPT_IN_BLOCK // BLOCK_ELEMENTS)


def count_blocks(num_elements: int) -> int:
    """Return the number of blocks."""
    return -(-num_elements // BLOCK_ELEMENTS)


def count_sparse_bytes(num_elements: int) -> int:
    """Return the length of a sparse body."""
    kept = count_kept(num_elements)
    return 1 + count_blocks(num_elements) + (3 * kept + 1) // 2 + count_2bit_bytes(kept)


class Sparse:
    """Top-k with 2-bit codes."""

    def compress(self, units: torch.Tensor, slot: Slot, warm: torch.Tensor | None, seed: bytes) -> Compressed:
        """Take the largest of each block, ties to the lower position, and the step that leaves least."""
        del warm, seed
        flat = units.cpu().numpy().reshape(-1)
        blocks = count_blocks(flat.size)
        padded = np.zeros(blocks * BLOCK_ELEMENTS, dtype=np.int64)
        padded[: flat.size] = flat
        order = np.argsort(-np.abs(padded.reshape(blocks, BLOCK_ELEMENTS)), axis=1, kind="stable")
        positions, codes, scales = [], [], np.zeros(blocks, dtype=np.uint8)
        for block in range(blocks):
            kept = count_kept(min(BLOCK_ELEMENTS, flat.size - block * BLOCK_ELEMENTS))
            chosen = np.sort(order[block, :kept])
            scale, code = _quantise(padded[block * BLOCK_ELEMENTS + chosen], slot.exponent)
            if scale == 0:
                chosen, code = np.arange(kept), np.full(kept, _REST_CODE)
            positions.append(chosen)
            codes.append(code)
            scales[block] = scale
        body = b"".join(
            (
                bytes((choose_exponent(scales, slot),)),
                scales.tobytes(),
                _pack_positions(_joined(positions)),
                pack_2bit(_joined(codes), LEVELS_SPARSE),
            )
        )
        return Compressed(body=body, units=self.decode(body, slot)[0], warm=None)

    def validate(self, body: bytes, slot: Slot) -> None:
        """Check exponent, order and range of the positions, padding, and that blocks of scale 0 are at rest."""
        count = prod(slot.shape)
        kept, blocks = count_kept(count), count_blocks(count)
        scales = np.frombuffer(body, dtype=np.uint8, count=blocks, offset=1)
        check_exponent(body[0], scales, slot)
        at = 1 + blocks
        packed = body[at : at + (3 * kept + 1) // 2]
        if kept % 2 and packed[-1] >> 4 != 0:
            raise PayloadRefusedError(f"padding of {slot.name}", packed[-1] >> 4, 0)
        places = _places(packed, count)
        is_bad = (np.diff(places) <= 0).any() or (kept and int(places[-1]) >= count)
        if is_bad:
            raise PayloadRefusedError(f"positions of {slot.name}", "not ascending inside their blocks", "ascending")
        codes = body[at + len(packed) :]
        check_2bit(codes, kept, slot)
        if not scales.all():
            block_of_kept = np.arange(kept) // KEPT_IN_BLOCK
            is_rest = places == np.arange(kept) % KEPT_IN_BLOCK + block_of_kept * BLOCK_ELEMENTS
            is_rest &= unpack_2bit(codes, kept, LEVELS_SPARSE) == _REST_CODE
            is_said = scales != 0
            is_said[block_of_kept[~is_rest]] = True
            check_scales(scales, is_said, slot)

    def decode(self, body: bytes, slot: Slot) -> tuple[torch.Tensor, int]:
        """Put the codes times their block's scale in their places."""
        count = prod(slot.shape)
        kept, blocks = count_kept(count), count_blocks(count)
        steps = np.frombuffer(body, dtype=np.uint8, count=blocks, offset=1).astype(np.int64) << body[0]
        split = 1 + blocks + (3 * kept + 1) // 2
        places = _places(body[1 + blocks : split], count)
        units = np.zeros(count, dtype=np.int64)
        units[places] = unpack_2bit(body[split:], kept, LEVELS_SPARSE) * steps[places // BLOCK_ELEMENTS]
        return torch.from_numpy(units.reshape(slot.shape)), int(steps.max(initial=0))


def _quantise(values: npt.NDArray[np.int64], exponent: int) -> tuple[int, npt.NDArray[np.int64]]:
    """Return (scale, codes) of one block's largest elements; a scale 0 sends nothing."""
    sizes = np.abs(values).astype(np.float64) / (1 << exponent)
    peak = float(sizes.max(initial=0.0))
    signs = np.where(values < 0, -1, 1)
    best = (float("inf"), 0, np.full(values.size, LEVELS_SPARSE[0], dtype=np.int64))
    for step in np.linspace(peak / 3.6, peak / 2.0, _NUM_STEPS):
        scale = int(min(255, round(float(step))))
        for border in _BORDERS:
            levels = np.where(sizes < border * scale, 2, 3)
            error = float(np.square(sizes - levels * scale).sum())
            if error < best[0]:
                best = (error, scale, (signs * levels).astype(np.int64))
    return best[1], best[2]


def _pack_positions(positions: npt.NDArray[np.int64]) -> bytes:
    """Return 12-bit integers, the lowest bits first, the last one padded with 0."""
    padded = np.append(positions, 0) if positions.size % 2 else positions
    first, second = padded[0::2], padded[1::2]
    packed = np.stack((first & 255, first >> 8 | (second & 15) << 4, second >> 4), axis=1).astype(np.uint8)
    return packed.tobytes()[: (3 * positions.size + 1) // 2]


def _places(packed: bytes, count: int) -> npt.NDArray[np.int64]:
    """Return positions in the whole tensor: 12-bit integers, each in its own block."""
    kept = count_kept(count)
    padded = np.frombuffer(packed + bytes(-len(packed) % 3), dtype=np.uint8).reshape(-1, 3).astype(np.int64)
    positions = np.empty(2 * len(padded), dtype=np.int64)
    positions[0::2] = padded[:, 0] | (padded[:, 1] & 15) << 8
    positions[1::2] = padded[:, 1] >> 4 | padded[:, 2] << 4
    return positions[:kept] + np.arange(kept) // KEPT_IN_BLOCK * BLOCK_ELEMENTS


def _joined(pieces: list[npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
    return np.concatenate(pieces) if pieces else np.zeros(0, dtype=np.int64)
