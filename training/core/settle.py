"""One outer step of the agreed state: exact sum, one rounding, Nesterov in integers (SPEC, *Settlement*).

``chain.core.reference`` is the same arithmetic for one element in plain integers; the two must agree bit for
bit.  Sums of int64 are the same in any order, so payload order, thread count and layout don't matter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from training.core.canonical import CanonicalState
from training.core.codecs.integers import MAX_EXPONENT
from training.core.errors import PayloadRefusedError
from training.core.payload import PayloadPlan, decode_payload, plan_payload
from training.core.recipe import Recipe
from training.core.schedule import OuterCoefficients, first_step_of_round, outer_coefficients

MAX_EXPONENT_MOVE = 8
"""How far an exponent moves in one settled round."""

_INT32_MAX = (1 << 31) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """What a round did to the agreed state."""

    state: CanonicalState
    """The state after the round; the very same object when nothing was counted."""
    refused: int
    """Bit i is set where payload i is refused."""
    num_accepted: int
    """Payloads counted; 0 leaves the state as it was."""


def settle(
    recipe: Recipe,
    state: CanonicalState,
    round_index: int,
    payloads: Sequence[bytes],
    *,
    rank: int,
    local_steps: int,
) -> Settlement:
    """Return the state after round ``round_index`` given its payloads in commit order.

    ``rank`` and ``local_steps`` are the chain's for this round.  Never raises for what a payload holds: one
    that doesn't fit is refused and has no weight.
    """
    plan = plan_payload(recipe, state, round_index, rank=rank)
    counted = sum_payloads(payloads, plan)
    if counted.num_accepted == 0:
        return settle_void(state, refused=counted.refused)
    coefficients = outer_coefficients(recipe, round_index)
    theta, momentum = dict(state.theta), dict(state.momentum)
    exponents, ranks = dict(state.exponents), dict(state.ranks)
    for slot in plan.slots:
        name = slot.name
        mean = compute_mean(counted.totals[name], counted.num_accepted)
        theta[name], momentum[name] = step_tensor(theta[name], momentum[name], mean, coefficients)
        exponents[name] = next_exponent(exponents[name], counted.peaks[name])
        ranks[name] = slot.rank
    changed = {slot.name for slot in plan.slots}
    after = replace(
        state,
        theta=theta,
        momentum=momentum,
        exponents=exponents,
        ranks=ranks,
        local_steps=local_steps,
        step=first_step_of_round(recipe.rounds, round_index + 1),
        entry_cache={name: known for name, known in state.entry_cache.copy().items() if name not in changed},
    )
    return Settlement(state=after, refused=counted.refused, num_accepted=counted.num_accepted)


def settle_void(state: CanonicalState, *, refused: int = 0) -> Settlement:
    """Return the settlement of a VOID round: the state as it was, root and step counter included."""
    return Settlement(state=state, refused=refused, num_accepted=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """The exact sum over the payloads that fit."""

    refused: int
    """Bit i is set where payload i is refused."""
    num_accepted: int
    """Payloads in the sum."""
    totals: Mapping[str, torch.Tensor]
    """int64 grid units by tensor."""
    peaks: Mapping[str, int]
    """Largest scale of each tensor, grid units."""


def sum_payloads(payloads: Sequence[bytes], plan: PayloadPlan) -> Counted:
    """Return the sum over the payloads that fit their plan; at most 256, as the chain's bitmap has bits."""
    refused, num_accepted = 0, 0
    totals: dict[str, torch.Tensor] = {}
    peaks = {slot.name: 0 for slot in plan.slots}
    for index, payload in enumerate(payloads):
        try:
            contributions = decode_payload(payload, plan)
        except PayloadRefusedError:
            refused |= 1 << index
            continue
        num_accepted += 1
        for name, contribution in contributions.items():
            totals[name] = totals[name].add_(contribution.units) if name in totals else contribution.units.clone()
            peaks[name] = max(peaks[name], contribution.peak)
    return Counted(refused=refused, num_accepted=num_accepted, totals=totals, peaks=peaks)


def compute_mean(total: torch.Tensor, count: int) -> torch.Tensor:
    """Return an exact sum over workers divided by their number, rounded half up; int64.

    >>> compute_mean(torch.tensor([3, -3, -4]), 2).tolist()
    [2, -1, -2]
    """
    return torch.div(2 * total + count, 2 * count, rounding_mode="floor")


def step_tensor(
    theta: torch.Tensor, momentum: torch.Tensor, mean: torch.Tensor, coefficients: OuterCoefficients
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (theta, u) after one Nesterov step in int64, saturated to int32.

    ``u' = sat(toward_zero(mu u) + g)``, ``theta' = sat(theta - half_up(eta (g + toward_zero(mu u'))))``.
    """
    mean = mean.clamp(-_INT32_MAX, _INT32_MAX)
    moved = (_scale_toward_zero(momentum.to(torch.int64), coefficients.momentum_q15) + mean).clamp(
        -_INT32_MAX, _INT32_MAX
    )
    ahead = mean + _scale_toward_zero(moved, coefficients.momentum_q15)
    step = (ahead * coefficients.rate_q15 + (1 << 14)) >> 15
    return (
        (theta.to(torch.int64) - step).clamp(-_INT32_MAX, _INT32_MAX).to(torch.int32),
        moved.to(torch.int32),
    )


def next_exponent(exponent: int, peak: int) -> int:
    """Return x for the next exchange of a tensor: ceil(log2(2 peak / 255)), moved by at most 8, in 0..24.

    ``peak`` is the largest scale that was counted, in grid units; without any the exponent stays.
    """
    if peak == 0:
        return exponent
    wanted = max(0, (-(-2 * peak // 255) - 1).bit_length())
    return min(max(wanted, exponent - MAX_EXPONENT_MOVE, 0), exponent + MAX_EXPONENT_MOVE, MAX_EXPONENT)


def _scale_toward_zero(value: torch.Tensor, factor_q15: int) -> torch.Tensor:
    """Return value * factor / 2^15, rounded toward zero."""
    return torch.div(value * factor_q15, 1 << 15, rounding_mode="trunc")
