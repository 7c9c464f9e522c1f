"""How the updates of one tensor become one: exact integers, robust against a few that lie (SPEC, *Aggregation*).

Legend: D updates, E elements.  All values are int64 grid units.  Every rule is a function of the set of payloads, not
of their order, and everybody can recompute it.  Mean aggregation breaks with a single liar (TRAINING, *Robustness*).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from training.core.recipe import AggregationKind

CLIP_ABOVE_MEDIAN = 2
"""An update is left alone up to this many times the median norm: shifts are powers of two, and half a norm is too
much to take from an honest worker that did a few steps more."""

_CHUNK_ELEMENTS = 1 << 15
"""Elements worked on at once: they stay in the cache, torch does not start threads for so few, and the sum of 2^15
products of 19-bit limbs stays under 2^53."""

_LIMB_BITS = 19
"""Of the exact sums of squares: low-rank codes of two bits have one limb up to rank 228."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribution:
    """One worker's part of one tensor's sum."""

    units: torch.Tensor
    """int64 grid units, in the tensor's shape."""
    peak: int
    """Largest scale, grid units: what the next exponent follows."""
    exponent: int
    """All units are multiples of 2^exponent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregate:
    """What a round does to one tensor."""

    mean: torch.Tensor
    """g: int64 grid units."""
    peak: int
    """Largest scale after clipping, grid units."""
    shifts: tuple[int, ...]
    """Bits by which each update was clipped, in the order given."""


def aggregate(kind: AggregationKind, contributions: Sequence[Contribution]) -> Aggregate:
    """Return the aggregate of at least one contribution to one tensor.

    Two updates are always averaged as they are: nobody can say which of two lies.
    """
    if len(contributions) <= 2 or kind is AggregationKind.MEAN:
        return _clipped_mean(contributions, (0,) * len(contributions))
    if kind is AggregationKind.MEDIAN_CLIP:
        norms = [compute_square_norm(each) for each in contributions]
        return _clipped_mean(contributions, compute_clip_shifts(norms))
    if kind is AggregationKind.TRIMMED_MEAN:
        return _trimmed_mean(contributions)
    return _centered_clip(contributions)


def compute_clip_shifts(square_norms: Sequence[int]) -> tuple[int, ...]:
    """Return for each squared norm the least k with norm / 2^k at most twice the median; zeros don't vote.

    The median is the upper one, so that a majority has to lie before an honest update is clipped to theirs.

    >>> compute_clip_shifts([9, 16, 0, 25, 6400])
    (0, 0, 0, 0, 3)
    """
    voting = sorted(norm for norm in square_norms if norm > 0)
    if not voting:
        return (0,) * len(square_norms)
    bound = CLIP_ABOVE_MEDIAN**2 * voting[len(voting) // 2]
    return tuple(_count_shifts(norm, bound) for norm in square_norms)


def count_trimmed(num_updates: int) -> int:
    """Return how many values are dropped at each end of an element: the liars that 3f + 1 can bear."""
    return (num_updates - 1) // 3


def compute_square_norm(contribution: Contribution) -> int:
    """Return the exact squared norm of an update, in squared grid units."""
    return compute_square_sum(contribution.units, contribution.exponent) << 2 * contribution.exponent


def compute_square_sum(values: torch.Tensor, exponent: int = 0) -> int:
    """Return the sum of squares of int64 values below 2^62, each over 2^exponent, exactly.

    Products of limbs are exact in float64.

    >>> compute_square_sum(torch.tensor([3, -4, 1 << 40])) == 25 + (1 << 80)
    True
    """
    total = 0
    flat = values.reshape(-1)
    for start in range(0, flat.numel(), _CHUNK_ELEMENTS):
        chunk = flat[start : start + _CHUNK_ELEMENTS] >> exponent
        low, high = (int(edge) for edge in chunk.aminmax())
        if max(-low, high) < 1 << _LIMB_BITS:
            whole = chunk.double()
            total += int(torch.dot(whole, whole))
        else:
            total += _sum_squares_of_limbs(chunk.abs(), max(-low, high))
    return total


def compute_mean(total: torch.Tensor, count: int) -> torch.Tensor:
    """Return an exact sum over workers divided by their number, rounded half up; int64.

    >>> compute_mean(torch.tensor([3, -3, -4]), 2).tolist()
    [2, -1, -2]
    """
    return _sum_and_divide([total], (0,), count)


def _sum_and_divide(values: Sequence[torch.Tensor], shifts: Sequence[int], count: int) -> torch.Tensor:
    """Return half_up(sum of values >> shifts, count), chunk by chunk: each value passes through the cache once."""
    mean = torch.empty(values[0].numel(), dtype=torch.int64)
    flat = [value.reshape(-1) for value in values]
    for start in range(0, mean.numel(), _CHUNK_ELEMENTS):
        here = slice(start, start + _CHUNK_ELEMENTS)
        doubled = flat[0][here] >> shifts[0]
        for value, shift in zip(flat[1:], shifts[1:], strict=True):
            doubled.add_(value[here] >> shift if shift else value[here])
        doubled.mul_(2).add_(count)
        if count & (count - 1) == 0:
            mean[here] = doubled.bitwise_right_shift_(count.bit_length())
        else:
            mean[here] = torch.div(doubled, 2 * count, rounding_mode="floor")
    return mean.reshape(values[0].shape)


def _sum_squares_of_limbs(sizes: torch.Tensor, largest: int) -> int:
    num_limbs = -(-largest.bit_length() // _LIMB_BITS)
    limbs = [(sizes >> _LIMB_BITS * i & (1 << _LIMB_BITS) - 1).double() for i in range(num_limbs)]
    total = 0
    for i, left in enumerate(limbs):
        for j, right in enumerate(limbs):
            if i <= j:
                total += int(torch.dot(left, right)) * (1 if i == j else 2) << _LIMB_BITS * (i + j)
    return total


def _count_shifts(square_norm: int, bound: int) -> int:
    shift = 0
    while square_norm > bound << 2 * shift:
        shift += 1
    return shift


def _clipped_mean(contributions: Sequence[Contribution], shifts: tuple[int, ...]) -> Aggregate:
    mean = _sum_and_divide([each.units for each in contributions], shifts, len(contributions))
    peak = max(each.peak >> shift for each, shift in zip(contributions, shifts, strict=True))
    return Aggregate(mean=mean, peak=peak, shifts=shifts)


def _trimmed_mean(contributions: Sequence[Contribution]) -> Aggregate:
    """Return the mean of each element's values without the lowest and highest."""
    dropped = count_trimmed(len(contributions))
    kept = _sort_elements(contributions)[dropped : len(contributions) - dropped]
    mean = compute_mean(kept.sum(dim=0), len(kept))
    return Aggregate(mean=mean, peak=_median_peak(contributions), shifts=(0,) * len(contributions))


def _centered_clip(contributions: Sequence[Contribution]) -> Aggregate:
    """Return the median of each element plus the mean distance from it, long distances clipped (arXiv 2012.10333)."""
    center = _sort_elements(contributions)[(len(contributions) - 1) // 2]
    common = min(each.exponent for each in contributions)
    distances = [each.units - center for each in contributions]
    norms = [compute_square_sum(distance, common) for distance in distances]
    shifts = compute_clip_shifts(norms)
    mean = center + _sum_and_divide(distances, shifts, len(contributions))
    return Aggregate(mean=mean, peak=_median_peak(contributions), shifts=shifts)


def _sort_elements(contributions: Sequence[Contribution]) -> torch.Tensor:
    values_DE, _ = torch.stack([each.units for each in contributions]).sort(dim=0)
    return values_DE


def _median_peak(contributions: Sequence[Contribution]) -> int:
    return sorted(each.peak for each in contributions)[len(contributions) // 2]
