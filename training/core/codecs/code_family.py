"""Small codes for the factors of a low-rank update: four bits or two an element (SPEC, *Payloads*).

Legend: K rows, R columns.  A family chooses codes for float columns, and turns codes into bytes and back.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from training.core.codecs.integers import (
    INT4_LIMIT,
    INT4_REST,
    LEVELS_2BIT,
    check_2bit,
    check_int4,
    check_scales,
    count_2bit_bytes,
    count_int4_bytes,
    pack_2bit,
    pack_int4,
    read_nibbles,
    read_pairs,
    unpack_2bit,
    unpack_int4,
)
from training.core.codecs.protocol import Slot

_INT4_CLIPS = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5)
"""Steps tried for a column, as shares of largest/7; finer searches gain under 2 % of the residual (TRAINING)."""

_2BIT_STEPS = (0.3, 0.4, 0.5, 0.6, 0.75)
"""Steps tried for a column, as shares of its root mean square; 0.5 is right for normal values."""


class CodeFamily(Protocol):
    """How columns of floats become codes, and codes bytes."""

    def count_bytes(self, count: int) -> int:
        """Return the bytes of ``count`` codes."""
        ...

    def pack(self, codes: npt.NDArray[np.int64]) -> bytes:
        """Return codes as bytes."""
        ...

    def unpack(self, data: bytes, count: int) -> npt.NDArray[np.int64]:
        """Return ``count`` codes of valid bytes."""
        ...

    def check(self, data: bytes, num_rows: int, scales: npt.NDArray[np.uint8], slot: Slot) -> None:
        """Refuse bytes that are not the codes of one side's columns, given their scales, or not the only ones.

        Raises `PayloadRefusedError`.
        """
        ...

    def quantise(self, columns_KR: torch.Tensor) -> torch.Tensor:
        """Return the codes nearest in direction to each column, as floats."""
        ...


class Int4Codes:
    """-7..7."""

    def count_bytes(self, count: int) -> int:
        """Two in a byte."""
        return count_int4_bytes(count)

    def pack(self, codes: npt.NDArray[np.int64]) -> bytes:
        """As nibbles."""
        return pack_int4(codes)

    def unpack(self, data: bytes, count: int) -> npt.NDArray[np.int64]:
        """From nibbles."""
        return unpack_int4(data, count)

    def check(self, data: bytes, num_rows: int, scales: npt.NDArray[np.uint8], slot: Slot) -> None:
        """No nibble 0, padding 0; a column is zero exactly where its scale is."""
        count = num_rows * scales.size
        check_int4(data, count, slot)
        is_code = read_nibbles(data)[:count].reshape(num_rows, scales.size) != INT4_REST
        check_scales(scales, is_code.any(axis=0), slot)

    def quantise(self, columns_KR: torch.Tensor) -> torch.Tensor:
        """Round to the best of a few steps; a zero column stays zero."""
        peaks_R = columns_KR.abs().amax(dim=0).clamp_min(1e-30)
        choices = (
            (columns_KR * (INT4_LIMIT / (clip * peaks_R))).round().clamp(-INT4_LIMIT, INT4_LIMIT)
            for clip in _INT4_CLIPS
        )
        return _choose_best(columns_KR / peaks_R, list(choices))


class TwoBitCodes:
    """-3, -1, 1, 3."""

    def count_bytes(self, count: int) -> int:
        """Four in a byte."""
        return count_2bit_bytes(count)

    def pack(self, codes: npt.NDArray[np.int64]) -> bytes:
        """As pairs of bits; a component that is not sent (scale 0) has codes 0, written as the lowest level."""
        return pack_2bit(np.where(codes == 0, LEVELS_2BIT[0], codes), LEVELS_2BIT)

    def unpack(self, data: bytes, count: int) -> npt.NDArray[np.int64]:
        """From pairs of bits."""
        return unpack_2bit(data, count, LEVELS_2BIT)

    def check(self, data: bytes, num_rows: int, scales: npt.NDArray[np.uint8], slot: Slot) -> None:
        """Padding 0; the lowest level alone under a scale of 0."""
        count = num_rows * scales.size
        check_2bit(data, count, slot)
        if not scales.all():
            is_lowest = read_pairs(data)[:count].reshape(num_rows, scales.size) == 0
            check_scales(scales, (scales != 0) | ~is_lowest.all(axis=0), slot)

    def quantise(self, columns_KR: torch.Tensor) -> torch.Tensor:
        """Take sign and one of two sizes, the border at twice the best of a few steps."""
        sizes_R = columns_KR.square().mean(dim=0).sqrt().clamp_min(1e-30)
        scaled_KR = columns_KR / sizes_R
        signs_KR = torch.where(scaled_KR < 0, -1.0, 1.0)
        magnitudes_KR = scaled_KR.abs()
        return _choose_best(
            scaled_KR, [signs_KR * torch.where(magnitudes_KR < 2 * step, 1.0, 3.0) for step in _2BIT_STEPS]
        )


def round_to_int4(values: torch.Tensor) -> torch.Tensor:
    """Return the code nearest to each value, as floats."""
    return values.round().clamp(-INT4_LIMIT, INT4_LIMIT)


def round_to_2bit(values: torch.Tensor) -> torch.Tensor:
    """Return the odd level nearest to each value, as floats."""
    return (2 * torch.floor(values / 2) + 1).clamp(LEVELS_2BIT[0], LEVELS_2BIT[-1])


def _choose_best(columns_KR: torch.Tensor, choices: list[torch.Tensor]) -> torch.Tensor:
    """Return for each column the codes that leave least when fitted by one scale; the first where none gains."""
    best, best_gain_R = choices[0], torch.zeros_like(columns_KR[0])
    for codes in choices:
        gain_R = (codes * columns_KR).sum(dim=0) ** 2 / (codes * codes).sum(dim=0).clamp_min(1.0)
        better_R = gain_R > best_gain_R
        best = torch.where(better_R, codes, best)
        best_gain_R = torch.where(better_R, gain_R, best_gain_R)
    return best
