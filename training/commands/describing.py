"""A run in words, for people."""

from __future__ import annotations

from contracts.bindings.amounts import format_exact_tokens, format_tokens
from contracts.bindings.types import RunInfo, RunState
from training.commands.output import format_hash, format_name
from training.commands.void_rounds import ABSENCE_STEP, VoidRounds
from training.core.recipe import CodecKind, Recipe
from training.worker.funding import find_short_escrow


def describe_run(
    info: RunInfo, recipe_rank: int | None = None, void: VoidRounds | None = None
) -> list[tuple[str, str]]:
    """Return a run's figures as names and values."""
    fates = f" ({void.describe()})" if void is not None and info.num_settled else ""
    pay = format_tokens(info.params.reward_per_update) if info.params.reward_per_update else "nothing"
    return [
        ("state", format_name(info.state)),
        ("owner", info.owner),
        ("rounds", f"{info.num_settled} settled{fates}, {info.num_opened} opened, {info.num_rounds_total} in all"),
        *([("VOID rounds", ABSENCE_STEP)] if void is not None and void.num_void else []),
        ("head", f"version {info.head_version}, root {format_hash(info.head_root)}"),
        ("checkpoint", f"version {info.certified_version}, root {format_hash(info.certified_root)}"),
        ("members", f"{info.num_eligible} eligible of {info.num_members}; at least {info.params.min_members} needed"),
        ("pay", f"{pay} for a counted update"),
        ("escrow", describe_escrow(info)),
        *describe_lack(info),
        ("paid", f"{format_tokens(info.paid_rewards)} in rewards, {format_tokens(info.paid_storage)} for storage"),
        ("shape", describe_shape(info, recipe_rank)),
        ("recipe", format_hash(info.recipe_digest)),
    ]


def describe_lack(info: RunInfo) -> list[tuple[str, str]]:
    """Say what a run that waits for money needs, and the command that gives it; nothing of another run."""
    short = find_short_escrow(info)
    return [] if short is None else [("waits for money", f"{short}; next: {short.next_step}")]


def describe_escrow(info: RunInfo) -> str:
    """Say what is left in escrow; the end of a run sends the rest back."""
    if info.state is RunState.FINISHED and not info.escrow:
        return "what was left went back to the owner"
    is_short = find_short_escrow(info) is not None
    return format_exact_tokens(info.escrow) if is_short else format_tokens(info.escrow)


def describe_shape(info: RunInfo, recipe_rank: int | None = None) -> str:
    """Return the four figures of the algorithm with their letters.

    A fragment is exchanged every F rounds and H inner steps, so a round has H / F of them.  A codec without a rank has
    ``recipe_rank`` 0, and none is shown.
    """
    fragments, overlap = info.params.num_fragments, info.params.overlap
    as_in_recipe = f" ({recipe_rank})" if recipe_rank else ""
    rank = f", rank {info.rank}" if info.rank else f", rank as in the recipe{as_in_recipe}"
    if recipe_rank == 0:
        rank = ""
    return (
        f"F {fragments} fragment{'' if fragments == 1 else 's'}, "
        f"d {overlap} round{'' if overlap == 1 else 's'} of overlap, "
        f"H {info.local_steps} inner steps (about {info.local_steps // max(fragments, 1)} a round){rank}"
    )


def describe_rank(recipe: Recipe) -> str | None:
    """Say what a recipe's rank is cut to, where a matrix has fewer rows or columns; None where it is not."""
    # It counts with the codecs, which load torch: only here, so that other commands answer at once.
    from training.core.codecs.registry import codec_of_tensor, plan_slot
    from training.core.layout import build_layout

    shapes = [tensor.shape for tensor in build_layout(recipe).tensors if len(tensor.shape) == 2]
    kinds = [codec_of_tensor(recipe.codec.kind, shape, recipe.model.vocabulary) for shape in shapes]
    slots = [
        plan_slot(kind, "", shape, rank=recipe.codec.rank, exponent=0)
        for kind, shape in zip(kinds, shapes, strict=True)
        if kind in (CodecKind.LOW_RANK_2BIT, CodecKind.LOW_RANK_INT4)
    ]
    short = [slot for slot in slots if min(slot.shape) < recipe.codec.rank]
    if not short:
        return None
    cut = sorted({slot.rank for slot in short if slot.rank})
    num_dense = sum(slot.rank == 0 for slot in short)
    parts = []
    if cut:
        ranks = str(cut[0]) if len(cut) == 1 else f"{cut[0]} to {cut[-1]}"
        parts.append(f"{len(short) - num_dense} of {len(slots)} are cut to {ranks}, their shorter side")
    if num_dense:
        parts.append(f"{num_dense} of {len(slots)} as int8, of which low rank would take more than half")
    return f"note: codec.rank {recipe.codec.rank} is more than matrices of this model have: {'; '.join(parts)}"
