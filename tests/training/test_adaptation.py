"""Proposals for rank and H: what the spectrum and the link say, and where the chain's median leads."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from chain.core.rounds.settling import compute_median_step
from training.core.adaptation import Spectrum, measure_spectrum, propose, propose_local_steps, propose_rank
from training.core.canonical import create_genesis
from training.core.proposal import Link
from training.core.recipe import CodecKind, Recipe
from training.core.settle import settle
from training.data.corpus import Corpus
from training.local import LocalWorker

RecipeMaker = Callable[..., Recipe]


def test_spectrum_is_that_of_the_projection() -> None:
    generator = torch.Generator().manual_seed(1)
    delta = torch.randn(30, 20, generator=generator, dtype=torch.float64)
    units = (delta * 2**20).long()
    left, values, _ = torch.linalg.svd(units.double() / 2**20)
    normalised = units.double() / float(units.abs().max())
    spectrum = measure_spectrum(units, normalised.T @ left[:, :6], 20)
    assert spectrum.energies == pytest.approx((values[:6] ** 2).tolist(), rel=1e-6)
    assert spectrum.total == pytest.approx(float((values**2).sum()), rel=1e-9)


@settings(deadline=None)
@given(
    st.lists(st.floats(0, 1e6), min_size=1, max_size=20),
    st.floats(0, 1e6),
    st.integers(1, 30),
    st.integers(1, 9_999),
)
def test_proposed_rank_is_the_least_that_keeps_the_share(
    values: list[float], rest: float, rank: int, keep_bps: int
) -> None:
    energies = tuple(sorted(values, reverse=True))
    total = sum(energies) + rest
    got = propose_rank([Spectrum(energies=energies, total=total)], rank, keep_bps)
    if total == 0:
        assert got == 0
    elif got <= rank:
        assert sum(energies[:got]) * 10_000 >= keep_bps * total * (1 - 1e-9)
        assert sum(energies[: got - 1]) * 10_000 <= keep_bps * total * (1 + 1e-9)
    else:
        assert got == rank + 8


@pytest.mark.parametrize(
    ("exchange", "step", "expected"),
    [(0.0, 0.1, 8), (0.1, 0.1, 8), (1.0, 0.1, 50), (100.0, 0.1, 64), (1.0, 0.0, 0), (float("inf"), 0.1, 0)],
)
def test_local_steps_follow_the_link(make_recipe: RecipeMaker, exchange: float, step: float, expected: int) -> None:
    """F = 4 rounds of H/4 steps each: 1 s of exchange needs 1.25 s of compute, 12.5 steps a round."""
    recipe = make_recipe(fragments=4)
    recipe = replace(recipe, rounds=replace(recipe.rounds, max_local_steps=64))
    assert propose_local_steps(recipe, Link(exchange_seconds=exchange, step_seconds=step)) == expected


def test_fixed_recipes_propose_nothing(make_recipe: RecipeMaker) -> None:
    spectrum = Spectrum(energies=(1.0,), total=1.0)
    got = propose(make_recipe(), [spectrum], 4, Link(exchange_seconds=9.0, step_seconds=0.1))
    assert (got.rank, got.local_steps) == (0, 0)


@pytest.mark.parametrize(("keep_bps", "is_falling"), [(3_000, True), (9_900, False)])
def test_rank_of_a_run_follows_its_spectrum(
    make_recipe: RecipeMaker, corpus: Corpus, tmp_path: Path, keep_bps: int, is_falling: bool
) -> None:
    """Votes of a real worker, the chain's median: the rank moves, at most a tenth or one a round, over restarts too."""
    recipe = make_recipe(CodecKind.LOW_RANK_2BIT, fragments=1, num_rounds=8)
    recipe = replace(recipe, codec=replace(recipe.codec, rank=8, keep_energy_bps=keep_bps))
    worker = LocalWorker(recipe, create_genesis(recipe), 0, b"\x01" * 20, corpus=corpus)
    state, rank, ranks = create_genesis(recipe), 8, [8]
    for round_index in range(8):
        worker.train(round_index, 4)
        payload = worker.send(round_index, rank=rank)
        settlement = settle(recipe, state, round_index, [payload], rank=rank, local_steps=8)
        assert settlement.num_accepted == 1
        worker.apply(settlement, round_index, True)
        state = settlement.state
        proposal = worker.propose(None, rank=rank)
        worker.save(tmp_path / "state")
        worker = LocalWorker.load(tmp_path / "state", recipe, b"\x01" * 20, corpus=corpus)
        assert worker.propose(None, rank=rank) == proposal
        rank = compute_median_step(rank, [worker.propose(None, rank=rank).rank])
        ranks.append(rank)
    assert all(abs(after - before) <= 1 for before, after in itertools.pairwise(ranks))
    assert ranks[-1] < 8 if is_falling else ranks[-1] > 8
