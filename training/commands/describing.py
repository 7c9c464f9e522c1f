"""A run in words, for people."""

from __future__ import annotations

from contracts.bindings.amounts import format_tokens
from contracts.bindings.types import RunInfo, RunState
from training.commands.output import format_hash, format_name


def describe_run(info: RunInfo, recipe_rank: int | None = None) -> list[tuple[str, str]]:
    """Return a run's figures as names and values."""
    pay = format_tokens(info.params.reward_per_update) if info.params.reward_per_update else "nothing"
    return [
        ("state", format_name(info.state)),
        ("owner", info.owner),
        ("rounds", f"{info.num_settled} settled, {info.num_opened} opened, {info.num_rounds_total} in all"),
        ("head", f"version {info.head_version}, root {format_hash(info.head_root)}"),
        ("checkpoint", f"version {info.certified_version}, root {format_hash(info.certified_root)}"),
        ("members", f"{info.num_eligible} eligible of {info.num_members}; at least {info.params.min_members} needed"),
        ("pay", f"{pay} for a counted update"),
        ("escrow", describe_escrow(info)),
        ("paid", f"{format_tokens(info.paid_rewards)} in rewards, {format_tokens(info.paid_storage)} for storage"),
        ("shape", describe_shape(info, recipe_rank)),
        ("recipe", format_hash(info.recipe_digest)),
    ]


def describe_escrow(info: RunInfo) -> str:
    """Say what is left in escrow; the end of a run sends the rest back."""
    if info.state is RunState.FINISHED and not info.escrow:
        return "what was left went back to the owner"
    return format_tokens(info.escrow)


def describe_shape(info: RunInfo, recipe_rank: int | None = None) -> str:
    """Return the four figures of the algorithm with their letters.

    A fragment is exchanged every F rounds and H inner steps, so a round has H / F of them.
    """
    fragments, overlap = info.params.num_fragments, info.params.overlap
    as_in_recipe = f" ({recipe_rank})" if recipe_rank else ""
    rank = f"rank {info.rank}" if info.rank else f"rank as in the recipe{as_in_recipe}"
    return (
        f"F {fragments} fragment{'' if fragments == 1 else 's'}, "
        f"d {overlap} round{'' if overlap == 1 else 's'} of overlap, "
        f"H {info.local_steps} inner steps (about {info.local_steps // max(fragments, 1)} a round), {rank}"
    )
