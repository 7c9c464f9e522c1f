"""Decode, sum and step of one element of the training state, in plain integers (training/SPEC.md, *Settlement*).

The chain may have to judge one element: this is the same arithmetic that workers do in bulk, bit for bit, and
some hundred lines long so that anyone can check it by hand.  A property test compares it with the workers' code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

INT32_MAX = (1 << 31) - 1
"""Values saturate at plus and minus this; -2^31 never occurs."""

Q15_BITS = 15
"""Fraction bits of the outer coefficients."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ElementUpdate:
    """What one accepted payload says about one element."""

    exponent: int
    """x, 0..24: scales count 2^x grid units."""
    scales: tuple[int, ...]
    """Scale of each component, 0..255; of its row where the tensor is sent whole; (1,) where sent exactly."""
    left: tuple[int, ...]
    """The element's row of P; its code (or exact value) where the tensor is sent whole."""
    right: tuple[int, ...]
    """The element's row of Q; (1,) where the tensor is sent whole."""
    shift: int = 0
    """Bits by which this tensor of the update was clipped; anyone recomputes it from the round's payloads."""


def decode_element(update: ElementUpdate) -> int:
    """Return an update's contribution in grid units.

    >>> decode_element(ElementUpdate(exponent=3, scales=(2, 1), left=(7, -1), right=(-3, 5)))
    -376
    """
    terms = zip(update.scales, update.left, update.right, strict=True)
    return sum(scale * left * right for scale, left, right in terms) << update.exponent >> update.shift


def compute_clip_shifts(square_norms: Sequence[int]) -> tuple[int, ...]:
    """Return the shift of each update of a tensor from the exact squared norms, in the order given.

    The least k with norm / 2^k at most twice the upper median of the norms that are not 0; none for two updates or one.

    >>> compute_clip_shifts([4, 4, 400])
    (0, 0, 3)
    """
    voting = sorted(norm for norm in square_norms if norm)
    if len(square_norms) <= 2 or not voting:
        return (0,) * len(square_norms)
    bound = 4 * voting[len(voting) // 2]
    return tuple(next(k for k in range(norm.bit_length() + 1) if norm <= bound << 2 * k) for norm in square_norms)


def compute_trimmed_mean(values: Sequence[int]) -> int:
    """Return the mean, half up, of one element's values without the (D-1)//3 lowest and highest."""
    dropped = (len(values) - 1) // 3
    return _mean_half_up(sorted(values)[dropped : len(values) - dropped])


def compute_centered_mean(values: Sequence[int], shifts: Sequence[int]) -> int:
    """Return the lower median plus the mean, half up, of the distances from it, each shifted as its tensor was."""
    center = sorted(values)[(len(values) - 1) // 2]
    return center + _mean_half_up([value - center >> shift for value, shift in zip(values, shifts, strict=True)])


def step_element(
    theta: int, momentum: int, updates: Sequence[ElementUpdate], *, momentum_q15: int, rate_q15: int
) -> tuple[int, int]:
    """Return (theta, u) of an element after a round that counted ``updates`` (at least one).

    g = half_up(sum / count); u' = sat(toward_zero(mu u) + g);
    theta' = sat(theta - half_up(eta (g + toward_zero(mu u')))).
    """
    mean = _mean_half_up([decode_element(update) for update in updates])
    return step_from_mean(theta, momentum, mean, momentum_q15=momentum_q15, rate_q15=rate_q15)


def step_from_mean(theta: int, momentum: int, mean: int, *, momentum_q15: int, rate_q15: int) -> tuple[int, int]:
    """Return (theta, u) of an element from its aggregated update."""
    mean = _saturate(mean)
    moved = _saturate(_scale_toward_zero(momentum, momentum_q15) + mean)
    ahead = mean + _scale_toward_zero(moved, momentum_q15)
    step = (ahead * rate_q15 + (1 << (Q15_BITS - 1))) >> Q15_BITS
    return _saturate(theta - step), moved


def _mean_half_up(values: Sequence[int]) -> int:
    return (2 * sum(values) + len(values)) // (2 * len(values))


def _saturate(value: int) -> int:
    return max(-INT32_MAX, min(INT32_MAX, value))


def _scale_toward_zero(value: int, factor_q15: int) -> int:
    scaled = abs(value) * factor_q15 >> Q15_BITS
    return scaled if value >= 0 else -scaled
