"""One outer step of the agreed state: exact sum, one rounding, Nesterov in integers (SPEC, *Settlement*).

``chain.core.reference`` is the same arithmetic for one element in plain integers; the two must agree bit for
bit.  Sums of int64 are the same in any order, so payload order, thread count and layout don't matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from training.core.aggregation import Aggregate, aggregate
from training.core.canonical import CanonicalState
from training.core.codecs.integers import MAX_EXPONENT
from training.core.codecs.protocol import Slot
from training.core.errors import PayloadRefusedError
from training.core.payload import PayloadPlan, plan_payload, read_contribution, validate
from training.core.recipe import AggregationKind, Recipe
from training.core.schedule import OuterCoefficients, first_step_of_round, outer_coefficients

MAX_EXPONENT_MOVE = 8
"""How far an exponent moves in one settled round."""

_INT32_MAX = (1 << 31) - 1

_CHUNK_ELEMENTS = 1 << 14
"""Elements stepped at once: their int64 copies stay in the cache, and torch does not start threads for so few."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """What a round did to the agreed state."""

    state: CanonicalState
    """The state after the round; the very same object when nothing was counted."""
    refused: int
    """Bit i is set where payload i is refused."""
    num_accepted: int
    """Payloads counted; 0 leaves the state as it was."""
    clipped: int = 0
    """Bit i is set where payload i was counted with less than it said, in some tensor."""


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
    counted = select_valid(payloads, plan)
    refused = sum(1 << index for index in range(len(payloads)) if index not in counted)
    if not counted:
        return settle_void(state, refused=refused)
    coefficients = outer_coefficients(recipe, round_index)
    theta, momentum = dict(state.theta), dict(state.momentum)
    exponents, ranks = dict(state.exponents), dict(state.ranks)
    clipped = 0
    for slot in plan.slots:
        name = slot.name
        result = aggregate_slot(recipe.outer.aggregation, [payloads[index] for index in counted], plan, slot)
        theta[name], momentum[name] = step_tensor(theta[name], momentum[name], result.mean, coefficients)
        exponents[name] = next_exponent(exponents[name], result.peak)
        ranks[name] = slot.rank
        clipped |= sum(1 << index for index, shift in zip(counted, result.shifts, strict=True) if shift)
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
    return Settlement(state=after, refused=refused, num_accepted=len(counted), clipped=clipped)


def settle_void(state: CanonicalState, *, refused: int = 0) -> Settlement:
    """Return the settlement of a VOID round: the state as it was, root and step counter included."""
    return Settlement(state=state, refused=refused, num_accepted=0)


def select_valid(payloads: Sequence[bytes], plan: PayloadPlan) -> list[int]:
    """Return the indices of the payloads that fit their plan; at most 256, as the chain's bitmap has bits."""
    valid = []
    for index, payload in enumerate(payloads):
        try:
            validate(payload, plan)
        except PayloadRefusedError:
            continue
        valid.append(index)
    return valid


def aggregate_slot(kind: AggregationKind, payloads: Sequence[bytes], plan: PayloadPlan, slot: Slot) -> Aggregate:
    """Return what valid payloads, at least one, do to one tensor; only that tensor is decoded."""
    return aggregate(kind, [read_contribution(payload, plan, slot) for payload in payloads])


def step_tensor(
    theta: torch.Tensor, momentum: torch.Tensor, mean: torch.Tensor, coefficients: OuterCoefficients
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (theta, u) after one Nesterov step in int64, saturated to int32.

    ``u' = sat(toward_zero(mu u) + g)``, ``theta' = sat(theta - half_up(eta (g + toward_zero(mu u'))))``.
    """
    shape = theta.shape
    theta_after = torch.empty(theta.numel(), dtype=torch.int32)
    momentum_after = torch.empty(theta.numel(), dtype=torch.int32)
    flat = (theta.reshape(-1), momentum.reshape(-1), mean.reshape(-1))
    for start in range(0, theta.numel(), _CHUNK_ELEMENTS):
        here = slice(start, start + _CHUNK_ELEMENTS)
        capped = flat[2][here].clamp(-_INT32_MAX, _INT32_MAX)
        moved = _scale_toward_zero(flat[1][here].to(torch.int64), coefficients.momentum_q15).add_(capped)
        moved.clamp_(-_INT32_MAX, _INT32_MAX)
        momentum_after[here] = moved
        step = _scale_toward_zero(moved, coefficients.momentum_q15).add_(capped)
        step.mul_(coefficients.rate_q15).add_(1 << 14).bitwise_right_shift_(15)
        theta_after[here] = step.neg_().add_(flat[0][here].to(torch.int64)).clamp_(-_INT32_MAX, _INT32_MAX)
    return theta_after.reshape(shape), momentum_after.reshape(shape)


def next_exponent(exponent: int, peak: int) -> int:
    """Return x for the next exchange of a tensor: ceil(log2(2 peak / 255)), moved by at most 8, in 0..24.

    ``peak`` is the largest scale that was counted, in grid units; without any the exponent stays.
    """
    if peak == 0:
        return exponent
    wanted = max(0, (-(-2 * peak // 255) - 1).bit_length())
    return min(max(wanted, exponent - MAX_EXPONENT_MOVE, 0), exponent + MAX_EXPONENT_MOVE, MAX_EXPONENT)


def _scale_toward_zero(value: torch.Tensor, factor_q15: int) -> torch.Tensor:
    """Return value * factor / 2^15, rounded toward zero: a floor after adding 2^15 - 1 to what is negative."""
    product = value * factor_q15
    return product.add_((product >> 63).bitwise_and_((1 << 15) - 1)).bitwise_right_shift_(15)
