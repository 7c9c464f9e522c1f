"""Between a worker's float32 weights and the grid of the agreed state (SPEC, *The worker's invariant*).

All bookkeeping of a worker is in grid units, int64, so nothing is lost between what it learned, what it sent
and what it still owes: the sum of all q sent, plus e, is the sum of all progress, exactly.
"""

from __future__ import annotations

import torch

_INT32_MAX = (1 << 31) - 1


def to_units(values: torch.Tensor, fraction_bits: int) -> torch.Tensor:
    """Return finite float32 values as grid units, int64 on the CPU, rounded half to even, saturated to int32."""
    scaled = values.detach().cpu().double() * float(1 << fraction_bits)
    return scaled.round().clamp(-_INT32_MAX, _INT32_MAX).to(torch.int64)


def from_units(units: torch.Tensor, fraction_bits: int) -> torch.Tensor:
    """Return grid units as float32 values."""
    return (units.double() * 2.0**-fraction_bits).float()
