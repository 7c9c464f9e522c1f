"""``trainer plan``: what a link and a model size lead to, on paper (SPEC, *On paper*)."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from training.commands.options import JsonOption, MicroBatchesOption
from training.commands.output import STDOUT, format_bytes, print_json, print_pairs, print_table
from training.commands.plan_memory import SHOWN_GPU_BYTES, compute_memory, describe_batch, describe_shape
from training.core.errors import PlanError
from training.core.throughput import (
    ASSUMED_GPU_FLOPS,
    MAX_FIGURE,
    MAX_LOCAL_STEPS,
    MAX_WORKERS,
    PUBLISHED_GPUS,
    PUBLISHED_TOKENS_PER_SECOND,
    PUBLISHED_TOKENS_PER_STEP,
    Cluster,
    OuterLoop,
    assume_compute,
    compute_least_compression,
    compute_speeds,
)

_PREFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}

_SIZES = _PREFIXES | {"b": 1e9}
"""As sizes of models are written, `trainer recipe`'s too."""

_SHOWN_DIGITS = 30
"""Of a count that is refused."""

_SCALES = ((1e9, 2048, 64), (1e9, 2048, 1000), (100e9, 8192, 64), (100e9, 8192, 1000))
"""(N, width, D) of the table about growth."""

LEGEND = (
    "R: inner steps that one whole exchange in bf16 takes.  rho: how many times fewer bytes than a ring of bf16 ours\n"
    "moves over one worker's link, counted in its busier direction (fetching is that, from three workers on).\n"
    "H: inner steps between two exchanges.  N: parameters.  D: workers.  F: fragments, a round exchanges one.\n"
    "seats: storage nodes of a committee. dispersed: a worker's payload with parity; down: all others' payloads;\n"
    "store egress: what all stores send for one exchange."
)
"""What the letters mean."""


def plan(
    params: Annotated[str, typer.Option(help="N: parameters, such as 1.3B, 125M or 1.3e9.")] = "107B",
    bandwidth: Annotated[str, typer.Option(help="Of one worker's link, such as 1Gbps or 100Mbps.")] = "1Gbps",
    workers: Annotated[int, typer.Option(help="D: clusters that exchange.")] = 20,
    local_steps: Annotated[int, typer.Option(help="H: inner steps between two exchanges.")] = 125,
    compression: Annotated[
        float | None,
        typer.Option(help="rho: bf16 bytes over ours; default: our codec's, from the table of bytes. DiLoCoX's: 4.4."),
    ] = None,
    tokens_per_second: Annotated[
        float | None,
        typer.Option(help="Of all workers, computing only; default: DiLoCoX's 8 GPUs a worker, scaled by parameters."),
    ] = None,
    tokens_per_step: Annotated[
        float | None, typer.Option(help="Of all workers, in one inner step; default: the nearest recipe's batches.")
    ] = None,
    goodput: Annotated[float, typer.Option(help="Share of the bandwidth that a flow gets.")] = 1.0,
    codec_seconds: Annotated[float, typer.Option(help="Compress, sum and apply, each exchange.")] = 0.0,
    stages: Annotated[int, typer.Option(min=1, max=512, help="Of a worker, as `trainer join` takes them.")] = 1,
    shards: Annotated[int, typer.Option(min=1, max=512, help="Of a worker, as `trainer join` takes them.")] = 1,
    micro_batches: MicroBatchesOption = 0,
    precision: Annotated[str, typer.Option(help="Of the model's products on the GPU: bf16 or fp32.")] = "bf16",
    fragments: Annotated[int, typer.Option(min=1, max=256, help="F: groups of tensors, one exchanged a round.")] = 10,
    seats: Annotated[int, typer.Option(min=1, max=64, help="Storage nodes of the committee.")] = 6,
    as_json: JsonOption = False,
) -> None:
    """Print the model of speed (without options 107B on DiLoCoX's cluster), memory a GPU, and bytes as a run grows."""
    # It counts with the codecs, which load torch: only here, so that the other commands answer at once.

    from training.core.sizing import SHAPES, compute_compression, compute_scale, guess_shape
    from training.group.shape import GroupConfig
    from training.inner import Precision

    num_parameters = parse_params(params)
    check_count("--workers", workers, 2, MAX_WORKERS)
    check_count("--local-steps", local_steps, 1, MAX_LOCAL_STEPS)
    if stages > 1 and shards > 1:
        raise PlanError("--shards", shards, f"1 beside --stages {stages}: a worker has one or the other")
    if precision not in list(Precision):
        raise PlanError("--precision", precision, "bf16 or fp32")
    bandwidth_bits = parse_bandwidth(bandwidth)
    is_assumed = tokens_per_second is None or tokens_per_step is None
    nearest, batch_tokens = guess_batch(num_parameters)
    speed, batch = assume_compute(num_parameters, workers, tokens_per_second, tokens_per_step, batch_tokens)
    check_assumed(
        speed,
        batch,
        params=num_parameters,
        workers=workers,
        given_speed=tokens_per_second,
        given=tokens_per_step,
    )
    cluster = Cluster(
        num_parameters=num_parameters,
        num_workers=workers,
        bandwidth_bits=bandwidth_bits,
        goodput=goodput,
        tokens_per_second=speed,
        tokens_per_step=batch,
    )
    group = GroupConfig(
        num_stages=stages, num_shards=shards, num_micro_batches=micro_batches, precision=Precision(precision)
    )
    memory = {name: compute_memory(name, None, group, fragments) for name in SHAPES}
    memory["this"] = compute_memory("this", num_parameters, group, fragments)
    scales = [
        compute_scale(size, each, width=width, num_seats=seats, bandwidth_bits=cluster.bandwidth_bits)
        for size, width, each in (*_SCALES, (num_parameters, guess_shape(num_parameters)[1].width, workers))
    ]
    rho = compute_compression(scales[-1], cluster.exchange_bytes) if compression is None else compression
    loop = OuterLoop(local_steps=local_steps, compression=rho, codec_seconds=codec_seconds)
    speeds = compute_speeds(cluster, loop)
    least = compute_least_compression(cluster, local_steps)
    if as_json:
        print_json(
            {
                "tokens_per_second": speed,
                "tokens_per_step": batch,
                "is_compute_assumed": is_assumed,
                "step_seconds": cluster.step_seconds,
                "exchange_seconds": cluster.exchange_seconds,
                "ratio": cluster.ratio,
                "compression": rho,
                "is_compression_assumed": compression is None,
                "least_compression": least,
                "speeds": speeds,
                "memory": memory,
                "scales": scales,
            }
        )
        return
    print_pairs(
        f"Link and step: {num_parameters:.4g} parameters, {workers} workers, {bandwidth}",
        [
            ("computing alone", f"{speed:,.0f} tokens/s of all workers, {batch:,.0f} tokens a step"),
            *(
                [("  ASSUMED", describe_assumption(tokens_per_second, tokens_per_step, nearest, batch_tokens))]
                if is_assumed
                else []
            ),
            ("one inner step", f"{cluster.step_seconds:,.{2 if cluster.step_seconds >= 1 else 4}f} s"),
            ("one whole bf16 exchange", f"{cluster.exchange_seconds:,.1f} s, R = {cluster.ratio:,.0f} steps"),
            ("compression", f"rho {rho:,.1f}"),
            (
                "  ASSUMED" if compression is None else "  given",
                describe_rho(scales[-1].bytes_a_parameter, compression),
            ),
            ("overlap hides it", describe_hiding(rho, cluster.ratio / local_steps, local_steps)),
        ],
    )
    print_table(
        "Tokens a second",
        ("scheme", "tokens/s", "computing", "over AllReduce"),
        [
            (each.scheme, f"{each.tokens_per_second:,.1f}", f"{100 * each.utilisation:.1f} %", f"{each.speed_up:,.1f}x")
            for each in speeds
        ],
    )
    print_table(
        f"Memory of a worker of {describe_shape(stages, shards, micro_batches)}, {precision}, F {fragments}, "
        f"as `trainer join` counts it. Activations are those of {describe_batch(group)}.",
        (
            "model",
            "parameters",
            "a GPU",
            "its activations, about",
            f"micro-batches for {SHOWN_GPU_BYTES / 1e9:.0f} GB",
            "the host",
        ),
        [
            (
                name,
                f"{each.parameters:,}",
                *(
                    (
                        format_bytes(each.device_bytes),
                        format_bytes(each.activation_bytes),
                        str(each.fitting_micro_batches or "none"),
                        format_bytes(each.host_bytes),
                    )
                    if not each.refusal
                    else (each.refusal, "", "", "")
                ),
            )
            for name, each in memory.items()
        ],
    )
    print_table(
        f"One exchange of the whole model, {seats} seats, {bandwidth}; the last line is this model",
        ("N", "D", "bytes a parameter", "payload", "dispersed", "down", "takes", "store egress"),
        [
            (
                f"{each.num_parameters:.3g}",
                str(each.num_workers),
                f"{each.bytes_a_parameter:.4f}",
                format_bytes(each.payload_bytes),
                format_bytes(each.dispersed_bytes),
                format_bytes(each.down_bytes),
                f"{each.link_seconds:,.0f} s",
                format_bytes(each.egress_bytes),
            )
            for each in scales
        ],
    )
    STDOUT.print(LEGEND)


def guess_batch(num_parameters: float) -> tuple[str, int | None]:
    """Return the recipe of the nearest size and the tokens that its worker takes in a step; None far above all."""
    from training.core.sizing import WIDEST_FROM, guess_shape
    from training.recipes.shapes import create_recipe

    nearest, _ = guess_shape(num_parameters)
    recipe = create_recipe(nearest)
    return nearest, None if num_parameters > WIDEST_FROM else recipe.inner.batch_size * recipe.model.context


def describe_assumption(
    tokens_per_second: float | None, tokens_per_step: float | None, nearest: str, batch_tokens: int | None
) -> str:
    """Say what stands in for the speed that nobody measured, and which options replace it."""
    missing = [
        name
        for name, given in (("--tokens-per-second", tokens_per_second), ("--tokens-per-step", tokens_per_step))
        if given is None
    ]
    parts = []
    if tokens_per_second is None:
        parts.append(
            f"{PUBLISHED_GPUS} GPUs a worker that sustain {ASSUMED_GPU_FLOPS / 1e12:.0f} TFLOP/s each, as in DiLoCoX "
            f"({PUBLISHED_TOKENS_PER_SECOND:,.0f} tokens/s of 107B with 20 workers), at 6 operations a parameter and "
            "token"
        )
    if tokens_per_step is None and batch_tokens is not None:
        parts.append(f"a step of {batch_tokens:,} tokens a worker, the batch of recipe {nearest}")
    elif tokens_per_step is None:
        parts.append(f"a step of DiLoCoX's {PUBLISHED_TOKENS_PER_STEP / PUBLISHED_TOKENS_PER_SECOND:.1f} s")
    return f"{', and '.join(parts)}; measure yours and give {' and '.join(missing)}"


def describe_rho(bytes_a_parameter: float, given: float | None) -> str:
    """Say where rho comes from."""
    ours = (
        f"{bytes_a_parameter:.4f} bytes a parameter (low_rank_2bit at rank 3 % of the width, as in recipe 125M and up)"
    )
    if given is None:
        return f"our payloads of {ours}, and all of the others' fetched; --compression replaces it here, not below"
    return f"by --compression; the table of bytes below still has our payloads of {ours}"


def describe_hiding(rho: float, least: float, local_steps: int) -> str:
    """Say whether the link keeps up while the inner steps run, and what compression has to do with it; least is R/H."""
    text = f"from rho {least:.2f} on at H = {local_steps}: "
    if rho < least:
        return text + "this one is not hidden, the workers wait for the link"
    if least <= 1:
        return text + "even a bf16 exchange is hidden, so compression saves bytes here and, overlapped, no time"
    return text + "this one is hidden, a bf16 exchange is not"


def check_assumed(
    speed: float, batch: float, *, params: float, workers: int, given_speed: float | None, given: float | None
) -> None:
    """Raise `PlanError` with what was given where the figures that follow from it are none a model takes."""
    least_speed = 1 / MAX_FIGURE
    if given_speed is None:
        cause = f"--params {params:g} and --workers {workers}"
    elif least_speed <= given_speed <= MAX_FIGURE:
        cause = f"--tokens-per-second {given_speed:g}"
    else:
        return  # that one is named itself
    for option, figure, least, own in (
        ("--tokens-per-second", speed, least_speed, given_speed),
        ("--tokens-per-step", batch, 1, given),
    ):
        if own is None and not least <= figure <= MAX_FIGURE:
            raise PlanError(f"{option} (not given: from {cause})", f"{figure:g}", f"{least:g} to {MAX_FIGURE:g}")


def check_count(option: str, count: int, least: int, most: int) -> None:
    """Raise `PlanError` for a count out of bounds, of any length: no float holds one of 400 digits."""
    if not least <= count <= most:
        shown = str(count) if abs(count) < 10**_SHOWN_DIGITS else f"a number of more than {_SHOWN_DIGITS} digits"
        raise PlanError(option, shown, f"{least} to {most}")


def parse_params(text: str) -> float:
    """Read parameters: '1.3B', '125M', '1.3e9'. Raises `PlanError`."""
    match = re.fullmatch(
        r"\s*(-?[0-9]*\.?[0-9]+(?:e[+-]?[0-9]+)?|-?[0-9]+\.)([kmgtb]?)\s*", text, re.ASCII | re.IGNORECASE
    )
    if match is None:
        raise PlanError("--params", text, "a number such as 1.3B, 125M or 1.3e9")
    count = float(match[1]) * _SIZES[match[2].lower()]
    if not 1 <= count <= MAX_FIGURE:
        raise PlanError("--params", text, f"1 to {MAX_FIGURE:g}, such as 1.3B, 125M or 1.3e9")
    return count


def parse_bandwidth(text: str) -> float:
    """Read bits a second: '1Gbps', '100 Mbit/s', '2.5e8 bps'. Raises `PlanError`, also without a unit."""
    match = re.fullmatch(
        r"\s*([0-9]*\.?[0-9]+(?:e[+-]?[0-9]+)?|[0-9]+\.)\s*([kmgt]?)(?:bps|bits?|bits?/s)\s*", text.lower()
    )
    if match is None:
        raise PlanError("--bandwidth", text, "a number with its unit, such as 1Gbps or 100Mbps")
    return float(match[1]) * _PREFIXES[match[2]]
