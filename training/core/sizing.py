"""What a run needs on paper: memory a GPU, and bytes as members and parameters grow (DESIGN 8; SPEC, *Scale*).

Everything is computed from the code's own byte counts, so a change of a format changes the table.
"""

from __future__ import annotations

from dataclasses import dataclass

from da.core.scheme import compute_scheme
from training.core.codecs.registry import plan_slot
from training.core.recipe import CodecKind, ModelRecipe

INNER_BYTES = 16
"""A parameter in the inner loop: bf16 weight and gradient, fp32 master and two moments."""

OUTER_BYTES = 8
"""theta and u, int32 each; they may live in CPU memory."""

PENDING_BYTES = 8
"""An own update in flight as int64 grid units; only the fragments under way, and it may live in CPU memory."""

RESIDUAL_BYTES = 8
"""Error feedback, int64 grid units; may live in CPU memory."""

RANK_SHARE = 0.03
"""Of the width: rank of large models (DESIGN 8)."""

SHAPES: dict[str, ModelRecipe] = {
    "0.4M": ModelRecipe(width=96, num_layers=3, num_heads=4, hidden=256, context=128),
    "10M": ModelRecipe(width=320, num_layers=8, num_heads=5, hidden=864, context=512),
    "125M": ModelRecipe(width=768, num_layers=18, num_heads=12, hidden=2048, context=1024),
    "1.3B": ModelRecipe(width=2048, num_layers=26, num_heads=16, hidden=5504, context=2048),
    "7B": ModelRecipe(width=4096, num_layers=34, num_heads=32, hidden=11008, context=4096),
}
"""Byte-level shapes by the size they are called after."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes of one GPU, activations not counted."""

    parameters: int
    """P of the whole model."""
    inner: float
    """Weights, gradients, optimizer."""
    outer: float
    """theta, u, residual, in flight; 0 on the GPU where they live in CPU memory."""


def count_parameters(model: ModelRecipe) -> int:
    """Return the parameters of the byte-level GPT of a shape."""
    block = 4 * model.width**2 + 3 * model.width * model.hidden + 2 * model.width
    return model.vocabulary * model.width + model.num_layers * block + model.width


def compute_memory(
    num_parameters: float,
    *,
    num_stages: int = 1,
    sharding: int = 1,
    num_fragments: int = 1,
    is_outer_on_cpu: bool = False,
) -> Memory:
    """Return (P / (M Z)) times the bytes a parameter; in flight are the fragments of two rounds at most."""
    share = num_parameters / (num_stages * sharding)
    in_flight = PENDING_BYTES * min(1.0, 2 / num_fragments)
    return Memory(
        parameters=int(num_parameters),
        inner=share * INNER_BYTES,
        outer=0.0 if is_outer_on_cpu else share * (OUTER_BYTES + RESIDUAL_BYTES + in_flight),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Bytes of one exchange of a whole model, every H steps."""

    num_parameters: float
    """N."""
    num_workers: int
    """D counted."""
    bytes_a_parameter: float
    """Of a payload."""
    payload_bytes: float
    """Of one worker."""
    dispersed_bytes: float
    """With n/k."""
    down_bytes: float
    """Others' payloads."""
    link_seconds: float
    """Of the busier way of a worker's link, at its bandwidth."""
    egress_bytes: float
    """All that the stores send for it."""


def compute_payload_density(width: int, kind: CodecKind = CodecKind.LOW_RANK_2BIT) -> float:
    """Return bytes a parameter of a block's matrices at this width and a rank of 3 % of it."""
    rank = max(1, round(RANK_SHARE * width))
    shapes = ((3 * width, width), (width, width), (16 * width // 3, width), (width, 8 * width // 3))
    slots = [plan_slot(kind, "matrix", shape, rank=rank, exponent=0) for shape in shapes]
    return sum(slot.num_bytes for slot in slots) / sum(rows * columns for rows, columns in shapes)


def compute_scale(
    num_parameters: float, num_workers: int, *, width: int, num_seats: int, bandwidth_bits: float
) -> Scale:
    """Return what one exchange moves without groups: each worker fetches every other's payload."""
    scheme = compute_scheme(num_seats)
    density = compute_payload_density(width)
    payload = density * num_parameters
    dispersed, down = payload * scheme.num_shards / scheme.num_data, payload * (num_workers - 1)
    return Scale(
        num_parameters=num_parameters,
        num_workers=num_workers,
        bytes_a_parameter=density,
        payload_bytes=payload,
        dispersed_bytes=dispersed,
        down_bytes=down,
        link_seconds=8 * max(dispersed, down) / bandwidth_bits,
        egress_bytes=payload * (num_workers - 1) * num_workers,
    )


def compute_compression(scale: Scale, bf16_bytes: float) -> float:
    """Return rho of an exchange: a worker's bytes in a ring of bf16 over those of its link's busier way in ours."""
    return bf16_bytes / max(scale.dispersed_bytes, scale.down_bytes)
