"""AllReduce in the same code, for comparison: one model, the gradient of all workers' samples at every step.

Averaging D gradients of B samples each is the gradient of D * B samples, so one process does what a cluster would.
Samples, learning rate and start are those of the recipe's run with the same number of workers.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from training.core.canonical import CanonicalState, create_genesis, dequantise
from training.core.fixed_point import to_units
from training.core.recipe import Recipe
from training.core.sampling import compute_data_seed, plan_samples
from training.core.schedule import compute_global_step, learning_rate, plan_steps
from training.data.corpus import Corpus
from training.evaluation import gather_samples
from training.inner import InnerLoop
from training.simulate import make_members


def train_allreduce(
    recipe: Recipe,
    corpus: Corpus,
    num_workers: int,
    on_round: Callable[[int, CanonicalState], None] | None = None,
) -> CanonicalState:
    """Return the state after as many steps as the recipe's rounds have; ``on_round`` hears of each round's end."""
    state = create_genesis(recipe)
    inner = InnerLoop(recipe, torch.device("cpu"))
    inner.set_weights(dequantise(state))
    members, batch = make_members(num_workers), recipe.inner.batch_size
    for round_index in range(recipe.rounds.num_rounds):
        plans = [
            plan_samples(
                seed=recipe.seed,
                round_index=round_index,
                data_seed=compute_data_seed(recipe.seed, round_index),
                member=member,
                participants=members,
                num_bytes=int(corpus.train.size),
                context=recipe.model.context,
            )
            for member in members
        ]
        num_steps = plan_steps(recipe.rounds, round_index, recipe.rounds.local_steps)
        for step in range(num_steps):
            starts = [start for plan in plans for start in plan.starts(step * batch, batch)]
            global_step = compute_global_step(recipe.rounds, round_index, step, num_steps)
            samples_BT = gather_samples(corpus.train, starts, recipe.model.context)
            inner.step(samples_BT, learning_rate(recipe.inner, recipe.rounds, global_step))
        if on_round is not None:
            on_round(round_index, read_state(state, inner))
    return read_state(state, inner)


def read_state(genesis: CanonicalState, inner: InnerLoop) -> CanonicalState:
    """Return a model's weights on the grid, so that it is evaluated like an agreed one."""
    theta = {
        name: to_units(weight, genesis.fraction_bits[name]).to(torch.int32) for name, weight in inner.weights.items()
    }
    return CanonicalState(
        theta=theta,
        momentum=genesis.momentum,
        fraction_bits=genesis.fraction_bits,
        exponents=genesis.exponents,
        ranks=genesis.ranks,
        local_steps=genesis.local_steps,
        step=genesis.step,
    )
