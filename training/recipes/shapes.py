"""Recipes as functions: each returns the full `Recipe` of one size; `trainer recipe NAME` prints it as TOML.

The shapes stand in `training.core.sizing`.  Outer schedule and overlap are the defaults that measured best (TRAINING,
*What we found*); inner rates fall with the width, as the square root of 1/width from the demo's.  Up to 10M parameters
Muon trains inside and words carry its updates (SPEC, *Measurements*).  Larger sizes were not measured: they keep AdamW
and low rank at 3 % of the width, whose payloads are eight times smaller.
"""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt

from training.core.errors import RecipeValueError
from training.core.recipe import (
    CodecKind,
    CodecRecipe,
    DataRecipe,
    DataSource,
    InnerRecipe,
    ModelRecipe,
    OptimizerKind,
    OuterRecipe,
    Recipe,
    RoundsRecipe,
)
from training.core.sizing import RANK_SHARE, SHAPES

_DEMO_WIDTH = 96
_DEMO_RATES = {OptimizerKind.ADAMW: 0.004, OptimizerKind.MUON: 0.0064}
_FORGET = {OptimizerKind.ADAMW: 0, OptimizerKind.MUON: 3_000}
_CODECS = {OptimizerKind.ADAMW: CodecKind.LOW_RANK_2BIT, OptimizerKind.MUON: CodecKind.VECTOR}

MUON_OUTER = OuterRecipe(rate_start_q15=42598, rate_end_q15=26214)
"""eta 1.3 -> 0.8: the vector codec holds back two fifths of what is owed, and a longer step makes up for it (SPEC)."""

_OUTERS = {OptimizerKind.ADAMW: OuterRecipe(), OptimizerKind.MUON: MUON_OUTER}


def create_0_4m() -> Recipe:
    """Return a run of minutes on two cores."""
    return _create(
        "0.4M",
        batch_size=8,
        local_steps=120,
        num_rounds=60,
        source=DataSource.PYTHON_STDLIB,
        optimizer=OptimizerKind.MUON,
    )


def create_10m() -> Recipe:
    """Return a run of an hour on one small GPU a worker."""
    return _create(
        "10M",
        batch_size=32,
        local_steps=120,
        num_rounds=400,
        source=DataSource.PYTHON_STDLIB,
        optimizer=OptimizerKind.MUON,
    )


def create_125m() -> Recipe:
    """Return a run of a day on one GPU a worker; each worker names its text."""
    return _create("125M", batch_size=64, local_steps=120, num_rounds=2_000, source=DataSource.FILE)


def create_1_3b() -> Recipe:
    """Return DiLoCoX's smaller size: one GPU of 80 GB a worker with ``--micro-batches``, or a few stages."""
    return _create("1.3B", batch_size=256, local_steps=125, num_rounds=5_000, source=DataSource.FILE)


def create_7b() -> Recipe:
    """Return a size that needs stages or sharding."""
    return _create("7B", batch_size=512, local_steps=125, num_rounds=10_000, source=DataSource.FILE)


RECIPES: dict[str, Callable[[], Recipe]] = {
    "0.4M": create_0_4m,
    "10M": create_10m,
    "125M": create_125m,
    "1.3B": create_1_3b,
    "7B": create_7b,
}
"""By the name on the command line."""


def create_recipe(name: str) -> Recipe:
    """Return the recipe of a size. Raises `RecipeValueError` naming those there are."""
    if name not in RECIPES:
        raise RecipeValueError("name", name, "one of " + ", ".join(RECIPES))
    return RECIPES[name]()


def create_recipe_for(model: ModelRecipe, name: str) -> Recipe:
    """Return a recipe for any model, a hugging_face one above all, with the defaults for its width."""
    return _fill(name, model, batch_size=32, local_steps=120, num_rounds=1_000, source=DataSource.FILE)


def _create(
    name: str,
    *,
    batch_size: int,
    local_steps: int,
    num_rounds: int,
    source: DataSource,
    optimizer: OptimizerKind = OptimizerKind.ADAMW,
) -> Recipe:
    return _fill(
        name,
        SHAPES[name],
        batch_size=batch_size,
        local_steps=local_steps,
        num_rounds=num_rounds,
        source=source,
        optimizer=optimizer,
    )


def _fill(
    name: str,
    model: ModelRecipe,
    *,
    batch_size: int,
    local_steps: int,
    num_rounds: int,
    source: DataSource,
    optimizer: OptimizerKind = OptimizerKind.ADAMW,
) -> Recipe:
    return Recipe(
        name=name,
        seed=1,
        model=model,
        data=DataRecipe(source=source, eval_windows=256),
        inner=InnerRecipe(
            batch_size=batch_size,
            optimizer=optimizer,
            learning_rate=round(_DEMO_RATES[optimizer] * sqrt(_DEMO_WIDTH / model.width), 6),
            warmup_steps=min(2_000, local_steps * num_rounds // 100),
        ),
        codec=CodecRecipe(
            kind=_CODECS[optimizer], rank=max(16, round(RANK_SHARE * model.width)), forget_bps=_FORGET[optimizer]
        ),
        rounds=RoundsRecipe(num_fragments=10, overlap=1, local_steps=local_steps, num_rounds=num_rounds),
        outer=_OUTERS[optimizer],
    )
