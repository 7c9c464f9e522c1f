"""What a worker takes on each device: `trainer plan` prints it, `trainer join` holds it against what is free.

16 bytes a parameter where it is trained: float32 weights, gradients and two moments; two more with bf16.  What the
outer loop keeps is in host memory: theta, momentum, residual, offset and what is in flight (SPEC, *Memory*).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

from training.core.errors import MemoryShortError
from training.core.layout import build_layout
from training.core.recipe import ModelKind, Recipe
from training.core.sizing import (
    FRAGMENTS_UNDER_WAY,
    INNER_BYTES,
    OFFSET_BYTES,
    OUTER_BYTES,
    PENDING_BYTES,
    RESIDUAL_BYTES,
)
from training.group.cutting import TIED, cut_layers, plan_stages
from training.group.shape import GroupConfig, choose_micro_batches
from training.inner import Precision

STREAM_COPIES = 24
"""Activations kept for backward, in floats of width a token and layer: attention, SwiGLU and norms, about."""

CAST_BYTES = 2
"""A parameter on the device with bf16: the copy that a forward pass multiplies by, kept for the backward pass."""

PASSING_BYTES = 16
"""A parameter in host memory for a while: weights, moments and offsets of a state that is loaded.

A save takes 12 of them, an evaluation 8.
"""

EXCHANGE_BYTES = 4
"""A parameter in host memory with shards: the file that rows travel through."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceNeeds:
    """Bytes of one process on its device."""

    name: str
    """What people call it: worker, stage 0, shard 1."""
    device: str
    """cpu, cuda:1."""
    num_parameters: int
    """That it trains."""
    inner_bytes: int
    """Their weights, gradients and moments, and what it borrows."""
    activation_bytes: int
    """About, at the busiest moment of a step, in float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What a whole worker takes."""

    processes: tuple[DeviceNeeds, ...]
    """One, or the group's."""
    outer_bytes: int
    """In host memory: agreed state, error feedback, what is in flight, and what a load takes for a while."""

    @property
    def num_parameters(self) -> int:
        """Return P."""
        return sum(process.num_parameters for process in self.processes)

    @property
    def device_bytes(self) -> int:
        """Return what the process that trains most takes, without activations."""
        return max(process.inner_bytes for process in self.processes)

    @property
    def activation_bytes(self) -> int:
        """Return the most that a process takes beside it, about."""
        return max(process.activation_bytes for process in self.processes)


def plan_needs(recipe: Recipe, group: GroupConfig | None = None, devices: Sequence[str] = ("cpu",)) -> Needs:
    """Return what a worker of this shape takes; ``devices`` are those of its processes."""
    shape = GroupConfig() if group is None else group
    total = build_layout(recipe).num_parameters
    if shape.num_stages > 1:
        processes = tuple(
            _plan_stage(recipe, shape, stage, names, devices[stage])
            for stage, names in enumerate(plan_stages(recipe, shape.num_stages))
        )
    elif shape.num_shards > 1:
        processes = _plan_shards(recipe, shape, devices)
    else:
        processes = (_plan_one(recipe, shape, devices[0]),)
    under_way = (PENDING_BYTES + OUTER_BYTES) * min(1.0, FRAGMENTS_UNDER_WAY / recipe.rounds.num_fragments)
    outer = OUTER_BYTES + RESIDUAL_BYTES + OFFSET_BYTES + under_way + PASSING_BYTES
    if shape.num_stages > 1:
        outer += OUTER_BYTES  # the agreed state is with the parent, which votes, and with the stages
    elif shape.num_shards > 1:
        outer += EXCHANGE_BYTES
    return Needs(processes=processes, outer_bytes=int(outer * total))


def describe_needs(needs: Needs, free_bytes: Mapping[str, int]) -> list[str]:
    """Return the table for people: a line a process, and one for host memory."""
    lines = [f"memory, {needs.num_parameters:,} parameters:"]
    for process in needs.processes:
        lines.append(
            f"  {process.name:<8} {process.device:<7} {_gb(process.inner_bytes)} weights, gradients, moments"
            f" + about {_gb(process.activation_bytes)} activations; {_gb(free_bytes[process.device])} free"
        )
    lines.append(
        f"  {'outer':<8} {'host':<7} {_gb(needs.outer_bytes)} agreed state, error feedback, in flight, loading; "
        f"{_gb(free_bytes['cpu'])} free"
    )
    return lines


def read_free_bytes(device: str) -> int:
    """Return the memory that is free on a device now."""
    if torch.device(device).type == "cuda":
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # by torch, for this process
        return int(torch.cuda.mem_get_info(device)[0]) + kept
    return int(psutil.virtual_memory().available)


def check_devices(needs: Needs, free_bytes: Mapping[str, int]) -> None:
    """Refuse to start what cannot fit; activations are an estimate, and are not held against it.

    On the CPU all processes and the outer state share one memory.  Raises `MemoryShortError`.
    """
    needed = {"cpu": needs.outer_bytes}
    for process in needs.processes:
        needed[process.device] = needed.get(process.device, 0) + process.inner_bytes
    for device, num_bytes in sorted(needed.items()):
        if num_bytes > free_bytes[device]:
            raise MemoryShortError(device, num_bytes, free_bytes[device])


def _plan_one(recipe: Recipe, group: GroupConfig, device: str) -> DeviceNeeds:
    """Count a worker of one process; over micro-batches our GPT is one stage, which borrows its embedding."""
    layout = build_layout(recipe)
    is_borrowing = group.num_micro_batches > 0 and recipe.model.kind is ModelKind.GPT
    borrowed = (8 + _count_cast_bytes(group)) * layout.tensor(TIED).num_elements if is_borrowing else 0
    samples = recipe.inner.batch_size // choose_micro_batches(recipe.inner.batch_size, 1, group.num_micro_batches)
    return DeviceNeeds(
        name="worker",
        device=device,
        num_parameters=layout.num_parameters,
        inner_bytes=(INNER_BYTES + _count_cast_bytes(group)) * layout.num_parameters + borrowed,
        activation_bytes=_count_activations(recipe, samples, recipe.model.num_layers, has_logits=True),
    )


def _plan_stage(recipe: Recipe, group: GroupConfig, stage: int, names: Sequence[str], device: str) -> DeviceNeeds:
    """Count one stage; with 1F1B stage i keeps as many micro-batches as there are stages from it on."""
    sizes = {tensor.name: tensor.num_elements for tensor in build_layout(recipe).tensors}
    own = sum(sizes[name] for name in names)
    is_last = stage == group.num_stages - 1
    num_micro_batches = choose_micro_batches(recipe.inner.batch_size, group.num_stages, group.num_micro_batches)
    kept = min(num_micro_batches, group.num_stages - stage if group.schedule == "1f1b" else num_micro_batches)
    bounds = cut_layers(recipe.model.num_layers, group.num_stages)
    samples = recipe.inner.batch_size // num_micro_batches
    layers = bounds[stage + 1] - bounds[stage]
    return DeviceNeeds(
        name=f"stage {stage}",
        device=device,
        num_parameters=own,
        inner_bytes=(INNER_BYTES + _count_cast_bytes(group)) * own
        + ((8 + _count_cast_bytes(group)) * sizes[TIED] if is_last else 0),  # borrowed weight and its gradient
        activation_bytes=kept * _count_activations(recipe, samples, layers, has_logits=is_last),
    )


def _plan_shards(recipe: Recipe, group: GroupConfig, devices: Sequence[str]) -> tuple[DeviceNeeds, ...]:
    """Count the shards; each also holds the block that is computed and the next, whole, with a gradient."""
    tensors = build_layout(recipe).tensors
    total = sum(tensor.num_elements for tensor in tensors)
    blocks: dict[str, int] = {}
    for tensor in tensors:
        blocks[_block_of(tensor.name)] = blocks.get(_block_of(tensor.name), 0) + tensor.num_elements
    root = blocks.pop("", 0)
    gathered = root + 2 * max(blocks.values(), default=0)
    activations = _count_activations(
        recipe, recipe.inner.batch_size // group.num_shards, recipe.model.num_layers, has_logits=True
    )
    bounds = cut_layers(total, group.num_shards)  # to within a row of each tensor
    return tuple(
        DeviceNeeds(
            name=f"shard {index}",
            device=devices[index],
            num_parameters=bounds[index + 1] - bounds[index],
            inner_bytes=INNER_BYTES * (bounds[index + 1] - bounds[index])
            + 2 * 4 * gathered
            + _count_cast_bytes(group) * total,
            activation_bytes=activations,
        )
        for index in range(group.num_shards)
    )


def _count_cast_bytes(group: GroupConfig) -> int:
    """Return the bytes a parameter of the copies in bf16; each shard comes to hold those of the whole model."""
    return CAST_BYTES if group.precision is Precision.BF16 else 0


def _block_of(name: str) -> str:
    """Return the block a tensor is gathered with: the name up to its number, or nothing for the rest.

    >>> _block_of("model.layers.3.mlp.up.weight"), _block_of("embed.weight")
    ('model.layers.3', '')
    """
    parts = name.split(".")
    numbers = [index for index, part in enumerate(parts) if part.isdigit()]
    return ".".join(parts[: numbers[0] + 1]) if numbers else ""


def _count_activations(recipe: Recipe, samples: int, num_layers: int, *, has_logits: bool) -> int:
    model = recipe.model
    stream = 4 * samples * model.context * STREAM_COPIES * model.width * num_layers
    return stream + (2 * 4 * samples * model.context * model.vocabulary if has_logits else 0)


def _gb(num_bytes: float) -> str:
    """Write bytes of models large and small, in GB where there is one."""
    if num_bytes < 1e5:
        return f"{num_bytes / 1e3:.2f} kB"
    return f"{num_bytes / 1e9:.2f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.2f} MB"


STATE_BYTES = 48
"""A parameter in a saved worker state: float32 weight and moments, theta, u, offset, residual and what is in flight."""

KEPT_STATES = 3
"""The newest, the one before, and the one being written."""


def compute_disk_bytes(needs: Needs) -> int:
    """Return what a worker's home may come to hold."""
    return KEPT_STATES * STATE_BYTES * needs.num_parameters


def describe_short_disk(needs: Needs, folder: Path, free_bytes: int) -> str | None:
    """Return a warning where a worker's states will not fit its folder, else None (CASES 24)."""
    needed = compute_disk_bytes(needs)
    if free_bytes >= needed:
        return None
    return (
        f"{folder} has {_gb(free_bytes)} free, a worker of this size may need {_gb(needed)}; "
        "free some, or give another --home: without room it trains on, and a crash costs what was not saved"
    )
