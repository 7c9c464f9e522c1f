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
from training.core.recipe import Q15_ONE, AggregationKind, Recipe
from training.core.schedule import OuterCoefficients, first_step_of_round, outer_coefficients

MAX_EXPONENT_MOVE = 8
"""How far an exponent moves in one settled round."""

_INT32_MAX = (1 << 31) - 1

_CHUNK_ELEMENTS = 1 << 15
"""Elements that a thread steps at once: their float64 copies stay in its cache; torch gives no thread fewer."""


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
    reasons: tuple[tuple[int, str], ...] = ()
    """(i, why payload i is refused), for people: nobody votes on it."""


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
    counted, reasons = select_valid(payloads, plan)
    refused = sum(1 << index for index, _ in reasons)
    if not counted:
        return settle_void(state, refused=refused, reasons=reasons)
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
    return Settlement(state=after, refused=refused, num_accepted=len(counted), clipped=clipped, reasons=reasons)


def settle_void(state: CanonicalState, *, refused: int = 0, reasons: tuple[tuple[int, str], ...] = ()) -> Settlement:
    """Return the settlement of a VOID round: the state as it was, root and step counter included."""
    return Settlement(state=state, refused=refused, num_accepted=0, reasons=reasons)


def select_valid(payloads: Sequence[bytes], plan: PayloadPlan) -> tuple[list[int], tuple[tuple[int, str], ...]]:
    """Return the indices of the payloads that fit their plan, and (index, why) of the others.

    At most 256 in all, as the chain's bitmap has bits.
    """
    valid, reasons = [], []
    for index, payload in enumerate(payloads):
        try:
            validate(payload, plan)
        except PayloadRefusedError as error:
            reasons.append((index, f"{error.reason}: {error.got}, expected {error.expected}"))
            continue
        valid.append(index)
    return valid, tuple(reasons)


def aggregate_slot(kind: AggregationKind, payloads: Sequence[bytes], plan: PayloadPlan, slot: Slot) -> Aggregate:
    """Return what valid payloads, at least one, do to one tensor; only that tensor is decoded."""
    return aggregate(kind, [read_contribution(payload, plan, slot) for payload in payloads])


def step_tensor(
    theta: torch.Tensor, momentum: torch.Tensor, mean: torch.Tensor, coefficients: OuterCoefficients
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (theta, u) after one Nesterov step, saturated to int32.

    ``u' = sat(toward_zero(mu u) + g)``, ``theta' = sat(theta - half_up(eta (g + toward_zero(mu u'))))``.  In float64,
    where all of it is exact: every value is a whole number of 2^-15, at most 2^33, so 48 bits hold it; and twice as
    fast as int64, whose products have no short instruction.
    """
    shape, num_elements = theta.shape, theta.numel()
    mu, eta = coefficients.momentum_q15 / Q15_ONE, coefficients.rate_q15 / Q15_ONE
    theta_after = torch.empty(num_elements, dtype=torch.int32)
    momentum_after = torch.empty(num_elements, dtype=torch.int32)
    chunk = min(num_elements, _CHUNK_ELEMENTS * torch.get_num_threads())
    buffers = torch.empty((2, chunk), dtype=torch.float64)
    for start in range(0, num_elements, max(1, chunk)):
        here = slice(start, min(num_elements, start + chunk))
        capped, moved = buffers[:, : here.stop - start]
        capped.copy_(mean.reshape(-1)[here]).clamp_(-_INT32_MAX, _INT32_MAX)
        moved.copy_(momentum.reshape(-1)[here]).mul_(mu).trunc_().add_(capped).clamp_(-_INT32_MAX, _INT32_MAX)
        momentum_after[here] = moved
        step = moved.mul_(mu).trunc_().add_(capped).mul_(eta).add_(0.5).floor_()
        theta_after[here] = capped.copy_(theta.reshape(-1)[here]).sub_(step).clamp_(-_INT32_MAX, _INT32_MAX)
    return theta_after.reshape(shape), momentum_after.reshape(shape)


def next_exponent(exponent: int, peak: int) -> int:
    """Return x for the next exchange of a tensor: ceil(log2(2 peak / 255)), moved by at most 8, in 0..24.

    ``peak`` is the largest scale that was counted, in grid units; without any the exponent stays.
    """
    if peak == 0:
        return exponent
    wanted = max(0, (-(-2 * peak // 255) - 1).bit_length())
    return min(max(wanted, exponent - MAX_EXPONENT_MOVE, 0), exponent + MAX_EXPONENT_MOVE, MAX_EXPONENT)
