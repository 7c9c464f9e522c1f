"""The worker alone does as many inner steps as one worker of the run, and its loss is its own weights'."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from localnet.demo.solo import SoloProgress, load_progress, make_solo_recipe, save_progress, train_solo
from training.core.recipe import Q15_ONE, CodecKind, Recipe
from training.core.recipe_text import parse_recipe
from training.recipes.shipped import load_shipped


def make_recipe(*, num_rounds: int, num_fragments: int, local_steps: int) -> Recipe:
    recipe = parse_recipe(load_shipped("tiny"))
    rounds = replace(recipe.rounds, num_rounds=num_rounds, num_fragments=num_fragments, local_steps=local_steps)
    return replace(recipe, rounds=rounds)


@pytest.mark.parametrize(
    ("num_rounds", "num_fragments", "local_steps"), [(24, 4, 80), (24, 4, 120), (1, 1, 7), (5, 2, 9), (3, 4, 10)]
)
def test_solo_recipe_has_the_inner_steps_of_one_worker(num_rounds: int, num_fragments: int, local_steps: int) -> None:
    recipe = make_recipe(num_rounds=num_rounds, num_fragments=num_fragments, local_steps=local_steps)
    solo = make_solo_recipe(recipe)
    assert solo.rounds.num_rounds * solo.rounds.local_steps == num_rounds * local_steps // num_fragments
    assert (solo.rounds.num_fragments, solo.rounds.overlap) == (1, 0)
    assert solo.codec.kind is CodecKind.NONE
    assert (solo.outer.momentum_end_q15, solo.outer.rate_start_q15, solo.outer.rate_end_q15) == (0, Q15_ONE, Q15_ONE)
    assert (solo.model, solo.data, solo.inner, solo.seed) == (recipe.model, recipe.data, recipe.inner, recipe.seed)


def test_solo_worker_learns() -> None:
    told: list[SoloProgress] = []
    recipe = make_recipe(num_rounds=8, num_fragments=4, local_steps=20)
    train_solo(recipe, None, told.append)
    assert [progress.num_steps for progress in told] == [0, 20, 40]
    assert [progress.is_done for progress in told] == [False, False, True]
    assert told[-1].num_tokens == 40 * recipe.inner.batch_size * recipe.model.context
    assert told[-1].loss < told[0].loss - 0.3


def test_progress_is_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "solo.json"
    assert load_progress(path) is None
    progress = SoloProgress(
        num_parameters=10, num_steps=1, num_steps_total=2, num_tokens=3, loss=4.5, seconds=0.5, is_done=False
    )
    save_progress(progress, path)
    assert load_progress(path) == progress
    assert [entry.name for entry in tmp_path.iterdir()] == ["solo.json"]
