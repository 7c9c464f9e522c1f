"""What a run needs on paper: bytes a parameter, and bytes as members and parameters grow (DESIGN 8; SPEC, *On paper*).

Everything is computed from the code's own byte counts, so a change of a format changes the table.  `training.memory`
makes of them what a worker of a shape holds, for `trainer plan` and `trainer join` alike.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import log

from da.core.scheme import compute_scheme
from training.core.codecs.registry import plan_slot
from training.core.recipe import CodecKind, ModelRecipe

INNER_BYTES = 16
"""A parameter in the inner loop: float32 weight, gradient and AdamW's two moments; Muon's matrices have one."""

OUTER_BYTES = 8
"""theta and u, int32 each, in host memory."""

PENDING_BYTES = 8
"""An own update in flight as int64 grid units, in host memory; only the fragments under way."""

RESIDUAL_BYTES = 8
"""Error feedback, int64 grid units, in host memory."""

OFFSET_BYTES = 4
"""What float32 weights cannot say of the grid, int32, in host memory."""

FRAGMENTS_UNDER_WAY = 2
"""Rounds whose fragment is in flight, and rounds whose settled theta and u lie beside those in the weights."""

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

_WIDEST = ModelRecipe(width=8192, num_layers=80, num_heads=64, hidden=22016, context=4096)
"""Of models that are guessed at, from..."""

WIDEST_FROM = 30e9
"""...so many parameters on: far above the largest recipe."""

_MOST_LAYERS = 256
"""Of a guess: beyond it bytes are scaled."""


def count_parameters(model: ModelRecipe) -> int:
    """Return the parameters of the byte-level GPT of a shape."""
    block = 4 * model.width**2 + 3 * model.width * model.hidden + 2 * model.width
    return model.vocabulary * model.width + model.num_layers * block + model.width


def guess_shape(num_parameters: float) -> tuple[str, ModelRecipe]:
    """Return the known size that is nearest, and its shape with the layers that make about so many parameters.

    >>> name, shape = guess_shape(7e9)
    >>> name, shape.num_layers, round(count_parameters(guess_shape(107e9)[1]) / 1e9)
    ('7B', 35, 107)
    """
    name = min(SHAPES, key=lambda each: abs(log(count_parameters(SHAPES[each]) / num_parameters)))
    model = _WIDEST if num_parameters > WIDEST_FROM else SHAPES[name]
    block = count_parameters(replace(model, num_layers=2)) - count_parameters(replace(model, num_layers=1))
    around = count_parameters(model) - model.num_layers * block
    num_layers = round((num_parameters - around) / block)
    return name, replace(model, num_layers=min(max(1, num_layers), _MOST_LAYERS))


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
