"""What every command asks first: whether there is such a run."""

from __future__ import annotations

from contracts.bindings.client import ChainClient
from contracts.bindings.types import RunInfo, RunState
from training.core.errors import RecipeError
from training.core.layout import build_layout
from training.core.loss_unit import get_loss_unit
from training.core.recipe import ModelKind
from training.core.recipe_text import parse_recipe
from training.worker.errors import WrongRun

NAME_CHARACTERS = 24
"""Of a recipe's name in a table."""


def fetch_run(client: ChainClient, run: int) -> RunInfo:
    """Read a run; raises WrongRun when the chain has none of that number.

    The view itself answers zeros (state 0, none) for a run that does not exist.
    """
    info = client.training.run(run)
    if info.state is RunState.NONE:
        raise create_no_run(run)
    return info


def fetch_recipe_rank(client: ChainClient, run: int) -> int | None:
    """Return the rank that a run's recipe starts with, 0 where its codec has none; None of another version's recipe."""
    try:
        codec = parse_recipe(client.training.recipe(run).decode("utf-8", errors="replace")).codec
        return codec.rank if codec.has_rank else 0
    except RecipeError:
        return None


def fetch_recipe_name(client: ChainClient, run: int) -> str:
    """Return a recipe's name with its model's size, which only our own model's recipe says; `?` of another version's.

    Strangers write the name: long ones are cut.
    """
    try:
        recipe = parse_recipe(client.training.recipe(run).decode("utf-8", errors="replace"))
        name = recipe.name if len(recipe.name) <= NAME_CHARACTERS else recipe.name[: NAME_CHARACTERS - 1] + "…"
        if recipe.model.kind is not ModelKind.GPT:
            return name
        return f"{name}, {build_layout(recipe).num_parameters:,} parameters"
    except RecipeError:
        return "?"


def fetch_loss_unit(client: ChainClient, run: int) -> str:
    """Return what a run's losses are counted in; `nats`, of what isn't known, where the recipe can't be read here."""
    try:
        return get_loss_unit(parse_recipe(client.training.recipe(run).decode("utf-8", errors="replace")))
    except RecipeError:
        return "nats"


def create_no_run(run: object) -> WrongRun:
    """Return the error for a run that is not there."""
    return WrongRun(f"there is no run {run}", next_step="trainer run list")
