"""Dense codecs: every element is sent, with one 8-bit scale a row (SPEC, *Codecs*).

Body: x u8, scale u8 a row (a tensor of one dimension or none is one row), then the codes in row-major order.
Element = code * scale * 2^x grid units.  A row's scale is 0 exactly where its codes are.  One exception: where a whole
update rounds to 0, the first row's scale is 1, so that the next x, which follows the largest scale, comes down to it.
`Exact` sends the grid units themselves: the oracle.
"""

from __future__ import annotations

from math import prod

import numpy as np
import numpy.typing as npt
import torch

from training.core.codecs.integers import (
    INT4_LIMIT,
    INT4_REST,
    INT8_LIMIT,
    check_exponent,
    check_int4,
    check_scales,
    choose_exponent,
    count_int4_bytes,
    pack_int4,
    read_nibbles,
    unpack_int4,
)
from training.core.codecs.protocol import Compressed, Slot
from training.core.errors import PayloadRefusedError

INT32_LIMIT = (1 << 31) - 1
"""Largest magnitude an exact update has; -2^31 is refused, so that the range is symmetric."""

_CHUNK_ELEMENTS = 1 << 17
"""Elements coded at once, so that their float64 copies stay in the cache."""


def count_rows(shape: tuple[int, ...]) -> int:
    """Return the number of scales of a dense body."""
    if prod(shape) == 0:
        return 0
    return shape[0] if len(shape) > 1 else 1


def count_dense_bytes(shape: tuple[int, ...], *, is_int4: bool) -> int:
    """Return the length of a dense body."""
    count = prod(shape)
    return 1 + count_rows(shape) + (count_int4_bytes(count) if is_int4 else count)


class Dense:
    """8- or 4-bit codes."""

    def __init__(self, *, is_int4: bool) -> None:
        self._is_int4 = is_int4
        self._limit = INT4_LIMIT if is_int4 else INT8_LIMIT

    def compress(self, units: torch.Tensor, slot: Slot, warm: torch.Tensor | None, seed: bytes) -> Compressed:
        """Take the smallest scale that reaches a row's largest element; what saturates stays with the sender."""
        del warm, seed
        num_rows = count_rows(slot.shape)
        rows = units.cpu().reshape(num_rows, -1) if units.numel() else torch.zeros((0, 1), dtype=torch.int64)
        peaks = np.abs(torch.stack(rows.aminmax(dim=1)).numpy()).max(axis=0, initial=0)
        scales = np.minimum(-(-peaks // (self._limit << slot.exponent)), 255)
        inverses = 1.0 / np.maximum(scales << slot.exponent, 1)
        is_owed = bool(scales.any())
        scales[np.rint(peaks * inverses) == 0] = 0
        if is_owed and not scales.any():
            scales[0] = 1
        inverse = torch.from_numpy(inverses)[:, None]
        codes = torch.empty(rows.shape, dtype=torch.int8)
        num_rows_at_once = max(1, _CHUNK_ELEMENTS // rows.shape[1])
        for start in range(0, rows.shape[0], num_rows_at_once):
            here = slice(start, start + num_rows_at_once)
            codes[here] = rows[here].double().mul_(inverse[here]).round_().clamp_(-self._limit, self._limit)
        packed = pack_int4(codes.numpy().astype(np.int64)) if self._is_int4 else codes.numpy().tobytes()
        body = bytes((choose_exponent(scales, slot),)) + scales.astype(np.uint8).tobytes() + packed
        return Compressed(body=body, units=self.decode(body, slot)[0], warm=None)

    def validate(self, body: bytes, slot: Slot) -> None:
        """Check exponent and codes, and that scales are 0 exactly where all codes of a row are."""
        num_rows, count = count_rows(slot.shape), prod(slot.shape)
        scales = np.frombuffer(body, dtype=np.uint8, count=num_rows, offset=1)
        check_exponent(body[0], scales, slot)
        packed = body[1 + num_rows :]
        if self._is_int4:
            check_int4(packed, count, slot)
        else:
            _check_int8(packed, slot)
        if count:
            is_said = self._find_said(packed, num_rows, count)
            is_said[0] |= scales[0] == 1 and not is_said.any()
            check_scales(scales, is_said, slot)

    def decode(self, body: bytes, slot: Slot) -> tuple[torch.Tensor, int]:
        """Multiply codes by their row's scale."""
        num_rows, count = count_rows(slot.shape), prod(slot.shape)
        scales = np.frombuffer(body, dtype=np.uint8, count=num_rows, offset=1).astype(np.int64)
        packed = body[1 + num_rows :]
        codes = unpack_int4(packed, count) if self._is_int4 else np.frombuffer(packed, np.int8).astype(np.int64)
        steps = scales << body[0]
        units = codes.reshape(num_rows, -1) * steps[:, None] if count else codes
        return torch.from_numpy(units.reshape(slot.shape)), int(steps.max(initial=0))

    def _find_said(self, packed: bytes, num_rows: int, count: int) -> npt.NDArray[np.bool_]:
        """Return for each row whether it has a code that isn't 0."""
        if not self._is_int4:
            is_code = np.frombuffer(packed, dtype=np.uint8) != 0
        elif count // num_rows % 2 == 0:
            is_code = np.frombuffer(packed, dtype=np.uint8) != INT4_REST * 0x11
        else:
            is_code = read_nibbles(packed)[:count] != INT4_REST
        is_said: npt.NDArray[np.bool_] = is_code.reshape(num_rows, -1).any(axis=1)
        return is_said


class Exact:
    """The grid units as int32: nothing is lost, nothing is saved."""

    def compress(self, units: torch.Tensor, slot: Slot, warm: torch.Tensor | None, seed: bytes) -> Compressed:
        """Send everything; only what leaves int32 stays with the sender."""
        del warm, seed
        sent = units.cpu().clamp(-INT32_LIMIT, INT32_LIMIT)
        return Compressed(body=sent.numpy().astype("<i4").tobytes(), units=sent, warm=None)

    def validate(self, body: bytes, slot: Slot) -> None:
        """Refuse the one value that has no opposite."""
        num_bad = int(np.count_nonzero(np.frombuffer(body, dtype="<i4") == -INT32_LIMIT - 1))
        if num_bad != 0:
            raise PayloadRefusedError(f"values of {slot.name}", f"{num_bad} of -2^31", "none")

    def decode(self, body: bytes, slot: Slot) -> tuple[torch.Tensor, int]:
        """Read the grid units; there is no scale."""
        return torch.from_numpy(np.frombuffer(body, dtype="<i4").astype(np.int64).reshape(slot.shape)), 0


def _check_int8(packed: bytes, slot: Slot) -> None:
    """Refuse the one code that has no opposite. Raises `PayloadRefusedError`."""
    codes = np.frombuffer(packed, dtype=np.int8)
    if codes.min(initial=0) < -INT8_LIMIT:
        num_bad = int(np.count_nonzero(codes < -INT8_LIMIT))
        raise PayloadRefusedError(f"codes of {slot.name}", f"{num_bad} outside -127..127", "none")
