"""What a worker takes on its device, printed before it starts and compared with what is free (TRAINING).

(P / (M Z)) * (16 inner) on the device: fp32 weights, gradients and two moments here, bf16 with an fp32 master on
paper, the same bytes.  Anchor, momentum, error feedback and what is in flight stay in the host's memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

from training.core.errors import MemoryShortError
from training.core.layout import build_layout
from training.core.recipe import Recipe
from training.core.sizing import compute_memory

STREAM_COPIES = 24
"""Activations kept for backward, in floats of width a token and layer: attention, SwiGLU and norms, about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """Bytes, of one device and of the host."""

    num_parameters: int
    """P."""
    inner_bytes: int
    """Weights, gradients and moments of one stage, on the device."""
    activation_bytes: int
    """About, for one micro-batch in float32, on the device."""
    outer_bytes: int
    """theta, u, residual and in flight of the whole worker, in host memory."""


def compute_needs(recipe: Recipe, *, num_stages: int = 1, sharding: int = 1, num_micro_batches: int = 1) -> Needs:
    """Return what a worker of this shape takes."""
    model = recipe.model
    num_parameters = build_layout(recipe).num_parameters
    memory = compute_memory(
        num_parameters, num_stages=num_stages, sharding=sharding, num_fragments=recipe.rounds.num_fragments
    )
    samples = -(-recipe.inner.batch_size // (num_micro_batches * sharding))
    stream = 4 * samples * model.context * (STREAM_COPIES * model.width * -(-model.num_layers // num_stages))
    logits = 2 * 4 * samples * model.context * model.vocabulary
    return Needs(
        num_parameters=num_parameters,
        inner_bytes=int(memory.inner),
        activation_bytes=stream + logits,
        outer_bytes=int(memory.outer * num_stages * sharding),
    )


def describe_needs(needs: Needs, device: str) -> str:
    """Return one line for people."""
    return (
        f"{needs.num_parameters:,} parameters; on each {device}: {needs.inner_bytes / 1e9:.2f} GB weights, gradients "
        f"and moments, about {needs.activation_bytes / 1e9:.2f} GB activations; in host memory "
        f"{needs.outer_bytes / 1e9:.2f} GB agreed and outer state"
    )


def read_free_bytes(device: str) -> int:
    """Return the memory that is free on a device now."""
    if torch.device(device).type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return int(psutil.virtual_memory().available)


def check_device(needs: Needs, device: str, free_bytes: int, num_stages: int = 1) -> None:
    """Refuse to start what cannot fit; activations are an estimate, and are not held against it.

    On the CPU all stages and the outer state share one memory.  Raises `MemoryShortError`.
    """
    is_cpu = torch.device(device).type == "cpu"
    needed = needs.inner_bytes * num_stages + needs.outer_bytes if is_cpu else needs.inner_bytes
    if needed > free_bytes:
        raise MemoryShortError(device, needed, free_bytes)


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
        f"{folder} has {free_bytes / 1e9:.2f} GB free, a worker of this size may need {needed / 1e9:.2f} GB; "
        "free some, or give another --home: without room it trains on, and a crash costs what was not saved"
    )
