"""What happens in round t: steps, fragment, outer coefficients, learning rate (SPEC, *Schedules*).

Everything here is a function of the round or of the global step alone, so a worker that was away, a worker
that restarts and the chain agree without asking (CASES 5, 6).  Only the learning rate is a float: it acts
inside one worker and is no part of the agreed state.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from training.core.recipe import Q15_ONE, InnerRecipe, Recipe, RoundsRecipe


@dataclass(frozen=True, slots=True, kw_only=True)
class OuterCoefficients:
    """Outer momentum and step size of one round."""

    momentum_q15: int
    """mu in units of 2^-15."""
    rate_q15: int
    """eta in units of 2^-15."""


def compute_num_rounds_total(rounds: RoundsRecipe) -> int:
    """Return the number of rounds with the flush rounds at the end."""
    return rounds.num_rounds + rounds.num_fragments


def is_flush_round(rounds: RoundsRecipe, round_index: int) -> bool:
    """Say whether a round only sends what is left: no inner steps."""
    return round_index >= rounds.num_rounds


def fragment_of_round(round_index: int, num_fragments: int) -> int:
    """Return the fragment that round t exchanges: t mod F."""
    return round_index % num_fragments


def steps_of_round(round_index: int, local_steps: int, num_fragments: int) -> int:
    """Return steps(t) = floor((t+1) H / F) - floor(t H / F).

    Any F rounds in a row have H steps: H = 10, F = 4 gives 2, 3, 2, 3.  Flush rounds have none; see
    `plan_steps`.
    """
    return (round_index + 1) * local_steps // num_fragments - round_index * local_steps // num_fragments


def plan_steps(rounds: RoundsRecipe, round_index: int, local_steps: int) -> int:
    """Return the inner steps of a round under the chain's H: none in a flush round."""
    if is_flush_round(rounds, round_index):
        return 0
    return steps_of_round(round_index, local_steps, rounds.num_fragments)


def first_step_of_round(rounds: RoundsRecipe, round_index: int) -> int:
    """Return the global step at which a round begins, under the recipe's H."""
    return min(round_index, rounds.num_rounds) * rounds.local_steps // rounds.num_fragments


def compute_global_step(rounds: RoundsRecipe, round_index: int, inner_index: int, num_steps: int) -> int:
    """Return the global step of inner step ``inner_index`` of ``num_steps`` in a round.

    With the recipe's H this is ``first_step_of_round + inner_index``.  With another H the round's steps are
    spread over the same stretch, so the rate stays a function of how far the run is.
    """
    start = first_step_of_round(rounds, round_index)
    stretch = first_step_of_round(rounds, round_index + 1) - start
    return start + min(inner_index, num_steps) * stretch // max(1, num_steps)


def learning_rate(inner: InnerRecipe, rounds: RoundsRecipe, global_step: int) -> float:
    """Return the inner rate at a global step: linear warm-up, then a half cosine to the final ratio."""
    total = max(1, first_step_of_round(rounds, rounds.num_rounds))
    if global_step < inner.warmup_steps:
        return inner.learning_rate * (global_step + 1) / inner.warmup_steps
    progress = min(1.0, (global_step - inner.warmup_steps) / max(1, total - inner.warmup_steps))
    ratio = inner.final_rate_ratio + (1.0 - inner.final_rate_ratio) * 0.5 * (1.0 + math.cos(math.pi * progress))
    return inner.learning_rate * ratio


def outer_coefficients(recipe: Recipe, round_index: int) -> OuterCoefficients:
    """Return mu and eta of a round, linear in integers from the first round to the last that has steps.

    A flush round adds the plain mean of what is left (mu 0, eta 1): momentum has nothing behind it there, and
    keeping it cost 0.13 nats a byte on the demo recipe (SPEC, *Measurements*).
    """
    if is_flush_round(recipe.rounds, round_index):
        return OuterCoefficients(momentum_q15=0, rate_q15=Q15_ONE)
    outer = recipe.outer
    return OuterCoefficients(
        momentum_q15=_ramp(outer.momentum_start_q15, outer.momentum_end_q15, round_index, recipe.rounds.num_rounds),
        rate_q15=_ramp(outer.rate_start_q15, outer.rate_end_q15, round_index, recipe.rounds.num_rounds),
    )


def _ramp(start: int, end: int, index: int, count: int) -> int:
    """Return the integer at ``index`` of a line over ``count`` points, rounded down; flat behind its end."""
    last = count - 1
    if index >= last:
        return end
    return start + (end - start) * index // last
