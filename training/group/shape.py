"""The shape of a worker: how many processes, what each takes, on which device (SPEC, *Groups*).

Everything is checked before the worker joins, so a shape that cannot be costs no bond and no round.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from training.core.errors import DeviceCountError, RecipeValueError, ShardCountError
from training.core.recipe import Recipe
from training.group.cutting import plan_stages
from training.inner import Precision

TIMEOUT_SECONDS = 600.0
"""For one order to all processes: an inner step of a large model, or the compression of a fragment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig:
    """The shape of a worker: pipeline stages, or shards (FSDP), not both."""

    num_stages: int = 1
    """M, up to the layers."""
    num_shards: int = 1
    """Z; divides the batch."""
    num_micro_batches: int = 0
    """Of one step, without shards; 0: with stages the largest divisor of the batch up to twice the stages, which keeps
    them busy, else the whole batch at once."""
    schedule: str = "1f1b"
    """1f1b or gpipe: the same numbers, other memory."""
    num_threads: int = 0
    """CPU threads of each process, 0 for torch's choice."""
    precision: Precision = Precision.FP32
    """Of products in the model."""
    timeout_seconds: float = TIMEOUT_SECONDS
    """Longest a process may take for one order."""

    @property
    def num_processes(self) -> int:
        """Return M Z."""
        return self.num_stages * self.num_shards


def check_shape(recipe: Recipe, group: GroupConfig) -> None:
    """Refuse a shape that the model or the batch does not allow.

    Raises `StageCountError`, `ShardCountError` or `RecipeValueError`.
    """
    if group.num_stages > 1 and group.num_shards > 1:
        raise ShardCountError(group.num_shards, f"1 beside {group.num_stages} stages: a worker has one or the other")
    if group.num_shards > 1:
        if group.num_micro_batches:
            raise ShardCountError(group.num_shards, f"1 beside {group.num_micro_batches} micro-batches")
        if recipe.inner.batch_size % group.num_shards:
            raise ShardCountError(group.num_shards, f"a divisor of inner.batch_size = {recipe.inner.batch_size}")
        return
    if group.num_stages > 1:  # a model that cannot be cut is one process's
        plan_stages(recipe, group.num_stages)
    choose_micro_batches(recipe.inner.batch_size, group.num_stages, group.num_micro_batches)


def choose_micro_batches(batch_size: int, num_stages: int, wanted: int) -> int:
    """Return how many micro-batches a step has. Raises `RecipeValueError` where they don't divide the batch.

    >>> choose_micro_batches(8, 3, 0), choose_micro_batches(8, 1, 0)
    (4, 1)
    """
    if wanted == 0 and num_stages == 1:
        return 1
    if wanted == 0:
        return max(count for count in range(1, min(batch_size, 2 * num_stages) + 1) if batch_size % count == 0)
    if wanted < 1 or batch_size % wanted:
        raise RecipeValueError("inner.batch_size", batch_size, f"a multiple of the {wanted} micro-batches")
    return wanted


def plan_devices(device: str | torch.device, num_processes: int, num_cuda_devices: int) -> tuple[str, ...]:
    """Return the device of each process: the CPU, or CUDA devices in a row from the one that was named.

    Raises `DeviceCountError`.

    >>> plan_devices("cuda:2", 2, 4)
    ('cuda:2', 'cuda:3')
    """
    first = torch.device(device)
    if first.type != "cuda":
        return (str(first),) * num_processes
    start = first.index or 0
    if start + num_processes > num_cuda_devices:
        raise DeviceCountError(f"cuda:{start}", num_processes, num_cuda_devices)
    return tuple(f"cuda:{start + index}" for index in range(num_processes))
