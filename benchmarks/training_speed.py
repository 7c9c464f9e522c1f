"""Speed of the parts: each codec alone, the outer step of 125M parameters, and a whole settlement of them.

CPU seconds of one thread, so other programs on the machine take time, but none of ours; GB are of float32 parameters.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from benchmarks.report import Goal, Row
from training.core.canonical import CanonicalState, create_genesis
from training.core.codecs.registry import codec_of, plan_slot
from training.core.layout import build_layout
from training.core.payload import plan_payload
from training.core.recipe import CodecKind, Recipe
from training.core.schedule import OuterCoefficients
from training.core.settle import settle, step_tensor
from training.recipes.shapes import create_recipe

SHAPE, CODEC_RANK = (768, 3072), 24
"""A matrix of the 125M model's kind; 3 % of the width."""

CODECS = {
    "": (CodecKind.LOW_RANK_2BIT, f"low rank 2-bit at rank {CODEC_RANK}, of the recipes from 125M up"),
    "_vector": (CodecKind.VECTOR, "vector, of the recipes up to 10M and of loss_default"),
    "_sparse": (CodecKind.SPARSE_2BIT, "sparse 2-bit, of SparseLoCo"),
    "_int8": (CodecKind.DENSE_INT8, "dense int8, of the flush"),
}
"""By what follows ``codec_gb_s``: the codec, and what it is for."""

OUTER_STEP_GOAL_SECONDS = 2.0
"""Of the outer step of 125M parameters, on two cores."""

STEP_PIECES, STEP_PIECE_ELEMENTS = 10, 12_500_000
"""125M in tensors of a size whose copies fit any memory."""

NUM_MEMBERS = 2
"""Whose payloads are settled."""

REPEATS = 3
"""Of which the best counts."""


def make_speed_rows() -> list[Row]:
    """Return codecs, outer step and settlement."""
    step = make_outer_step_row()
    return [*make_codec_rows(), step, make_settlement_row(step.value)]


def make_codec_rows() -> list[Row]:
    """Return compression, and decoding with the exact sum, of every codec beside dense int8."""
    units = _draw_units(SHAPE, 0)
    measured = {kind: _measure_codec(kind, units) for kind, _ in CODECS.values()}
    num_bytes = 4 * units.numel()
    rows = []
    for name, index in (("codec_gb_s", 0), ("decode_and_sum_gb_s", 1)):
        for suffix, (kind, what) in CODECS.items():
            rows.append(
                Row(
                    name=f"{name}{suffix}",
                    value=num_bytes / measured[kind][index] / 1e9,
                    unit="GB/s",
                    peer="dense int8",
                    peer_value=num_bytes / measured[CodecKind.DENSE_INT8][index] / 1e9,
                    conditions=f"{what}; {SHAPE[0]} x {SHAPE[1]}, fp32 bytes a CPU second, one thread,"
                    f" best of {REPEATS}",
                )
            )
    return rows


def make_outer_step_row() -> Row:
    """Return the outer step alone, of a mean that is there."""
    generator = torch.Generator().manual_seed(0)
    size = (STEP_PIECE_ELEMENTS,)
    theta = torch.randint(-(2**28), 2**28, size, generator=generator, dtype=torch.int32)
    update = torch.randint(-(2**20), 2**20, size, generator=generator)
    coefficients = OuterCoefficients(momentum_q15=20_000, rate_q15=30_000)
    step = STEP_PIECES * _measure(lambda: step_tensor(theta, theta, update, coefficients))
    values = theta.float()
    floats = STEP_PIECES * _measure(lambda: values.mul(0.9).add_(update.float()))
    return Row(
        name="outer_step_125m_s",
        value=step,
        unit="s",
        peer="the same in float32, not agreed",
        peer_value=floats,
        conditions="momentum and step alone, of a mean that is there (settle_125m_s has the rest);"
        f" {STEP_PIECES} tensors of 12.5M, in float64, which holds it exactly; CPU seconds of one thread, best of"
        f" {REPEATS}; the goal is for two cores",
        goal=Goal(most=OUTER_STEP_GOAL_SECONDS),
    )


def make_settlement_row(step_seconds: float) -> Row:
    """Return all that a member computes between the last byte of an exchange and its vote, once for each fragment."""
    recipe = create_recipe("125M")
    state, parameters = create_genesis(recipe), build_layout(recipe).num_parameters
    rank, local_steps = recipe.codec.rank, recipe.rounds.local_steps
    state.root()  # what follows remembers the entries of the fragments that it leaves alone
    seconds, num_bytes = 0.0, 0
    for round_index in range(recipe.rounds.num_fragments):
        payloads = [_make_payload(recipe, state, round_index, member) for member in range(NUM_MEMBERS)]
        num_bytes += len(payloads[0])
        started = time.process_time()
        done = settle(recipe, state, round_index, payloads, rank=rank, local_steps=local_steps)
        done.state.root()
        seconds += time.process_time() - started
        assert done.num_accepted == NUM_MEMBERS, done.reasons
        state = done.state
    return Row(
        name="settle_125m_s",
        value=seconds,
        unit="s",
        peer="outer step alone",
        peer_value=step_seconds,
        conditions=f"recipe 125M ({parameters:,} parameters, {recipe.codec.kind.value} at rank {rank},"
        f" {recipe.rounds.num_fragments} fragments, {num_bytes:,} bytes a worker): {NUM_MEMBERS} payloads validated and"
        " decoded, norms and clip, exact mean, outer step, root; sum over all fragments, one run; CPU seconds of one"
        " thread",
    )


def _make_payload(recipe: Recipe, state: CanonicalState, round_index: int, member: int) -> bytes:
    """Compress noise, since what a payload holds makes no difference to the time it takes."""
    plan = plan_payload(recipe, state, round_index, rank=recipe.codec.rank)
    bodies = [
        codec_of(slot).compress(_draw_units(slot.shape, member), slot, None, bytes(32)).body for slot in plan.slots
    ]
    return plan.header + b"".join(bodies)


def _draw_units(shape: tuple[int, ...], seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=generator) * 2**20).long()


def _measure_codec(kind: CodecKind, units: torch.Tensor) -> tuple[float, float]:
    """Return the seconds of compression, from the last warm start on, and of decoding with the sum."""
    exponent = 10 if kind is CodecKind.DENSE_INT8 else 14
    slot = plan_slot(kind, "matrix", tuple(units.shape), rank=CODEC_RANK, exponent=exponent)
    codec = codec_of(slot)
    first = codec.compress(units, slot, None, bytes(32))
    compress = _measure(lambda: codec.compress(units, slot, first.warm, bytes(32)))
    total = torch.zeros_like(units)
    return compress, _measure(lambda: total.add_(codec.decode(first.body, slot)[0]))


def _measure(work: Callable[[], object]) -> float:
    """Return the CPU seconds of one call, best of several: other processes take time, but no CPU time of ours."""
    best = float("inf")
    for _ in range(REPEATS):
        started = time.process_time()
        work()
        best = min(best, time.process_time() - started)
    return best
