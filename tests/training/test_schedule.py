"""Schedules are functions of the round and of the global step alone (CASES 5, 6)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training.core.canonical import create_genesis
from training.core.payload import codec_of_round
from training.core.recipe import CodecKind, Recipe, RoundsRecipe
from training.core.recipe_text import parse_recipe
from training.core.schedule import (
    compute_global_step,
    compute_num_rounds_total,
    first_step_of_round,
    fragment_of_round,
    learning_rate,
    outer_coefficients,
    plan_steps,
    steps_of_round,
)
from training.core.settle import settle
from training.data.corpus import Corpus
from training.inner import InnerLoop
from training.local import LocalWorker
from training.recipes.shipped import load_shipped

MEMBER = b"\x01" * 20
RECIPE = parse_recipe(load_shipped("demo"))


@settings(deadline=None)
@given(st.integers(1, 64), st.integers(1, 500), st.integers(0, 10_000))
def test_any_f_rounds_have_h_steps(fragments: int, local_steps: int, start: int) -> None:
    steps = [steps_of_round(start + i, local_steps, fragments) for i in range(fragments)]
    assert sum(steps) == local_steps
    assert max(steps) - min(steps) <= 1


@settings(deadline=None)
@given(st.integers(1, 64), st.integers(0, 10_000))
def test_each_fragment_is_exchanged_once_in_f_rounds(fragments: int, start: int) -> None:
    turn = [fragment_of_round(start + i, fragments) for i in range(fragments)]
    assert sorted(turn) == list(range(fragments))


@settings(deadline=None)
@given(st.integers(1, 20), st.integers(20, 99), st.integers(1, 40))
def test_steps_add_up_to_the_global_step(fragments: int, local_steps: int, num_rounds: int) -> None:
    rounds = RoundsRecipe(num_fragments=fragments, overlap=1, local_steps=local_steps, num_rounds=num_rounds)
    seen = []
    for index in range(compute_num_rounds_total(rounds)):
        steps = plan_steps(rounds, index, local_steps)
        seen += [compute_global_step(rounds, index, inner, steps) for inner in range(steps)]
    assert seen == list(range(first_step_of_round(rounds, num_rounds)))


@settings(deadline=None)
@given(st.integers(1, 20), st.integers(20, 99), st.integers(1, 300))
def test_another_h_keeps_the_rate_inside_the_rounds_stretch(fragments: int, local_steps: int, steps: int) -> None:
    rounds = RoundsRecipe(num_fragments=fragments, overlap=1, local_steps=local_steps, num_rounds=9)
    seen = [compute_global_step(rounds, 3, inner, steps) for inner in range(steps)]
    assert seen == sorted(seen)
    assert first_step_of_round(rounds, 3) <= seen[0]
    assert seen[-1] <= first_step_of_round(rounds, 4)


def test_flush_rounds_have_no_steps_and_no_momentum() -> None:
    rounds = RECIPE.rounds
    assert compute_num_rounds_total(rounds) == rounds.num_rounds + rounds.num_fragments
    for index in range(rounds.num_rounds, compute_num_rounds_total(rounds)):
        assert plan_steps(rounds, index, rounds.local_steps) == 0
        coefficients = outer_coefficients(RECIPE, index)
        assert (coefficients.momentum_q15, coefficients.rate_q15) == (0, 32768)


def test_outer_ramp_goes_from_start_to_end() -> None:
    ramp = [outer_coefficients(RECIPE, index) for index in range(RECIPE.rounds.num_rounds)]
    assert [(each.momentum_q15, each.rate_q15) for each in (ramp[0], ramp[-1])] == [(0, 32768), (29491, 22938)]
    assert [each.momentum_q15 for each in ramp] == sorted(each.momentum_q15 for each in ramp)
    assert [each.rate_q15 for each in ramp] == sorted((each.rate_q15 for each in ramp), reverse=True)


def test_outer_ramp_of_one_round_is_its_end() -> None:
    one = replace(RECIPE, rounds=replace(RECIPE.rounds, num_rounds=1))
    assert outer_coefficients(one, 0).momentum_q15 == 29491


def test_learning_rate_warms_up_and_decays() -> None:
    inner, rounds = RECIPE.inner, RECIPE.rounds
    rates = [learning_rate(inner, rounds, step) for step in range(first_step_of_round(rounds, rounds.num_rounds) + 1)]
    assert rates[0] == pytest.approx(inner.learning_rate / inner.warmup_steps)
    assert max(rates) == rates[inner.warmup_steps] == inner.learning_rate
    assert rates[-1] == pytest.approx(inner.learning_rate * inner.final_rate_ratio)


def test_the_optimizer_gets_the_rate_of_its_step_across_restarts(
    make_recipe: Callable[..., Recipe], corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CASES 5: every step, those that a kill undid and that are made again, too.

    What a worker logs of it, a line a round, is read in test_devnet.py.
    """
    recipe = make_recipe(CodecKind.LOW_RANK_INT4, fragments=2, num_rounds=6)
    update = InnerLoop.update
    given: list[float] = []
    heard: list[tuple[int, float]] = []

    def note(inner: InnerLoop, rate: float) -> None:
        given.append(rate)
        update(inner, rate)

    monkeypatch.setattr(InnerLoop, "update", note)
    state, path = create_genesis(recipe), tmp_path / "worker.state"
    worker = LocalWorker(recipe, state, 0, MEMBER, corpus=corpus)

    def train(t: int, num_steps: int) -> None:
        """Make so many more of a round's four steps."""
        asked = iter(range(num_steps))
        worker.train(t, 4, lambda: next(asked, None) is None, on_step=lambda step, rate: heard.append((step, rate)))

    for t in range(6):
        begin = len(given)
        train(t, 2)
        worker.save(path)
        train(t, 1)  # lost
        for _ in range(2):
            worker = LocalWorker.load(path, recipe, MEMBER, corpus=corpus)
            train(t, 2)
        first = first_step_of_round(recipe.rounds, t)
        made = [first + inner for inner in (0, 1, 2, 2, 3, 2, 3)]
        expected = [(step, learning_rate(recipe.inner, recipe.rounds, step)) for step in made]
        assert heard[begin:] == expected
        assert given[begin:] == [rate for _, rate in expected]
        settlement = settle(recipe, state, t, [worker.send(t, rank=4)], rank=4, local_steps=recipe.rounds.local_steps)
        worker.apply(settlement, t, True)
        state = settlement.state
    assert len(set(heard)) == 24, "a rate for each step of the run"


@pytest.mark.parametrize("kind", list(CodecKind))
def test_a_low_rank_run_flushes_whole(kind: CodecKind) -> None:
    recipe = replace(RECIPE, codec=replace(RECIPE.codec, kind=kind))
    last = recipe.rounds.num_rounds
    assert codec_of_round(recipe, last - 1) is kind
    leaves_much = kind not in (CodecKind.NONE, CodecKind.DENSE_INT8, CodecKind.DENSE_INT4)
    assert codec_of_round(recipe, last) is (CodecKind.DENSE_INT8 if leaves_much else kind)
