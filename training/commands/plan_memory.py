"""What a worker of a size holds on GPU and host, for ``trainer plan``'s table."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from training.core.recipe import Recipe
    from training.group.shape import GroupConfig

SHOWN_GPU_BYTES = 80e9
"""The GPU for which micro-batches are counted: the common size of those for training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes of one worker, by `training.memory.plan_needs`."""

    parameters: int
    """Of the whole model."""
    device_bytes: float = 0.0
    """Weights, gradients and moments on the GPU that has most of them."""
    activation_bytes: float = 0.0
    """Beside them, about."""
    fitting_micro_batches: int | None = None
    """Fewest micro-batches, a power of two, with which both fit a GPU of `SHOWN_GPU_BYTES`; 1: undivided."""
    host_bytes: float = 0.0
    """What the outer loop keeps, of all the worker's processes."""
    refusal: str = ""
    """Why such a worker cannot be."""


def compute_memory(name: str, num_parameters: float | None, group: GroupConfig, num_fragments: int) -> Memory:
    """Return what a worker of a known size takes, or of any number of parameters, whose shape is guessed.

    The bytes of a guess are scaled by the parameters that it has too many or too few.
    """
    from training.core.errors import TrainingError
    from training.core.sizing import count_parameters, guess_shape
    from training.group.shape import check_shape
    from training.memory import plan_needs
    from training.recipes.shapes import create_recipe

    if num_parameters is None:
        recipe = create_recipe(name)
    else:
        nearest, model = guess_shape(num_parameters)
        recipe = replace(create_recipe(nearest), model=model)
    local_steps = max(recipe.rounds.local_steps, num_fragments)
    recipe = replace(recipe, rounds=replace(recipe.rounds, num_fragments=num_fragments, local_steps=local_steps))
    counted = count_parameters(recipe.model)
    wanted = counted if num_parameters is None else num_parameters
    try:
        check_shape(recipe, group)
    except TrainingError as error:
        return Memory(parameters=int(wanted), refusal=str(error).partition("; next")[0])
    needs = plan_needs(recipe, group, list_devices(group))
    scale = wanted / counted
    return Memory(
        parameters=int(wanted),
        device_bytes=scale * needs.device_bytes,
        activation_bytes=scale * needs.activation_bytes,
        fitting_micro_batches=find_fitting(recipe, group, SHOWN_GPU_BYTES / scale),
        host_bytes=scale * needs.outer_bytes,
    )


def find_fitting(recipe: Recipe, group: GroupConfig, gpu_bytes: float) -> int | None:
    """Return the fewest micro-batches, a power of two, with which no process takes more than ``gpu_bytes``.

    1 is the batch undivided; shards have no other.  None: no number does.
    """
    from training.memory import plan_needs

    most = 1 if group.num_shards > 1 else recipe.inner.batch_size
    for count in (1 << power for power in range(most.bit_length())):
        if recipe.inner.batch_size % count:
            return None
        divided = replace(group, num_micro_batches=0 if count == 1 and group.num_stages == 1 else count)
        needs = plan_needs(recipe, divided, list_devices(group))
        if max(process.inner_bytes + process.activation_bytes for process in needs.processes) <= gpu_bytes:
            return count
    return None


def list_devices(group: GroupConfig) -> list[str]:
    """Return a GPU for each process of a worker."""
    return [f"cuda:{index}" for index in range(group.num_processes)]


def describe_batch(group: GroupConfig) -> str:
    """Say how much of a batch is computed at once, and what divides it."""
    if group.num_shards > 1:
        return "a shard's part of a batch at once"
    if group.num_micro_batches:
        part = f"a batch in {group.num_micro_batches} micro-batches"
    elif group.num_stages > 1:
        part = "a batch in as many micro-batches as keep the stages busy"
    else:
        part = "a whole batch at once"
    return f"{part}; `trainer join --micro-batches` divides them"


def describe_shape(stages: int, shards: int, micro_batches: int) -> str:
    """Say of what a worker is made."""
    parts = f", {micro_batches} micro-batches" if micro_batches else ""
    if stages > 1:
        return f"{stages} stages{parts}"
    return f"{shards} shards" if shards > 1 else f"one process{parts}"
