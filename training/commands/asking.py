"""What every command asks first: whether there is such a run."""

from __future__ import annotations

from contracts.bindings.client import ChainClient
from contracts.bindings.types import RunInfo, RunState
from training.core.errors import RecipeError
from training.core.loss_unit import get_loss_unit
from training.core.recipe_text import parse_recipe
from training.worker.errors import WrongRun


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


def fetch_loss_unit(client: ChainClient, run: int) -> str:
    """Return what a run's losses are counted in; `nats`, of what isn't known, where the recipe can't be read here."""
    try:
        return get_loss_unit(parse_recipe(client.training.recipe(run).decode("utf-8", errors="replace")))
    except RecipeError:
        return "nats"


def create_no_run(run: object) -> WrongRun:
    """Return the error for a run that is not there."""
    return WrongRun(f"there is no run {run}", next_step="trainer run list")
