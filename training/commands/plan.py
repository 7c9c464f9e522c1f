"""``trainer plan``: what a link and a model size lead to, on paper (SPEC, *Speed*, *Scale*)."""

from __future__ import annotations

import re
from math import log
from typing import Annotated

import typer

from training.commands.options import JsonOption
from training.commands.output import STDOUT, format_bytes, print_json, print_pairs, print_table
from training.core.errors import PlanError
from training.core.throughput import (
    MAX_FIGURE,
    PUBLISHED_TOKENS_PER_SECOND,
    PUBLISHED_TOKENS_PER_STEP,
    Cluster,
    OuterLoop,
    assume_compute,
    compute_least_compression,
    compute_speeds,
)

_UNITS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}

_SIZES = _UNITS | {"b": 1e9}
"""As sizes of models are written, `trainer recipe`'s too."""

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
        float | None, typer.Option(help="Of all workers, in one inner step; default: what its 9.1 s take.")
    ] = None,
    goodput: Annotated[float, typer.Option(help="Share of the bandwidth that a flow gets.")] = 1.0,
    codec_seconds: Annotated[float, typer.Option(help="Compress, sum and apply, each exchange.")] = 0.0,
    stages: Annotated[int, typer.Option(min=1, max=512, help="Pipeline stages in a worker.")] = 1,
    sharding: Annotated[int, typer.Option(min=1, max=65_536, help="GPUs that share one stage.")] = 1,
    fragments: Annotated[int, typer.Option(min=1, max=256, help="F: groups of tensors, one exchanged a round.")] = 10,
    seats: Annotated[int, typer.Option(min=1, max=64, help="Storage nodes of the committee.")] = 6,
    as_json: JsonOption = False,
) -> None:
    """Print the model of speed (without options 107B on DiLoCoX's cluster), memory a GPU, and bytes as a run grows."""
    # It counts with the codecs, which load torch: only here, so that the other commands answer at once.

    from training.core.sizing import SHAPES, compute_compression, compute_memory, compute_scale, count_parameters

    num_parameters = parse_params(params)
    bandwidth_bits = parse_bandwidth(bandwidth)
    is_assumed = tokens_per_second is None or tokens_per_step is None
    speed, batch = assume_compute(num_parameters, workers, tokens_per_second, tokens_per_step)
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
    sizes = {name: float(count_parameters(shape)) for name, shape in SHAPES.items()} | {"this": num_parameters}
    memory = {
        name: compute_memory(size, num_stages=stages, sharding=sharding, num_fragments=fragments)
        for name, size in sizes.items()
    }
    scales = [
        compute_scale(size, each, width=width, num_seats=seats, bandwidth_bits=cluster.bandwidth_bits)
        for size, width, each in (*_SCALES, (num_parameters, _guess_width(num_parameters, sizes), workers))
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
            *([("  ASSUMED", describe_assumption(tokens_per_second, tokens_per_step))] if is_assumed else []),
            ("one inner step", f"{cluster.step_seconds:,.2f} s"),
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
        f"Memory a GPU, {stages} stages x {sharding} shards, F {fragments}, without activations",
        ("model", "parameters", "inner", "outer (or in CPU memory)"),
        [
            (name, f"{each.parameters:,}", format_bytes(each.inner), format_bytes(each.outer))
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


def describe_assumption(tokens_per_second: float | None, tokens_per_step: float | None) -> str:
    """Say what stands in for the speed that nobody measured, and which options replace it."""
    missing = [
        name
        for name, given in (("--tokens-per-second", tokens_per_second), ("--tokens-per-step", tokens_per_step))
        if given is None
    ]
    parts = []
    if tokens_per_second is None:
        parts.append(
            f"8 GPUs a worker as in DiLoCoX ({PUBLISHED_TOKENS_PER_SECOND:,.0f} tokens/s of 107B with 20 workers), "
            "scaled by parameters and workers"
        )
    if tokens_per_step is None:
        parts.append(f"a step of its {PUBLISHED_TOKENS_PER_STEP / PUBLISHED_TOKENS_PER_SECOND:.1f} s")
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


def _guess_width(num_parameters: float, sizes: dict[str, float]) -> int:
    """Return the width of the known shape whose size is nearest: bytes a parameter hardly depend on it."""
    from training.core.sizing import SHAPES

    widths = {sizes[name]: shape.width for name, shape in SHAPES.items()} | {100e9: 8192}
    return widths[min(widths, key=lambda size: abs(log(size / num_parameters)))]


def parse_params(text: str) -> float:
    """Read parameters: '1.3B', '125M', '1.3e9'. Raises `PlanError`."""
    plain = text.strip().lower()
    unit = _SIZES.get(plain[-1:])
    try:
        count = float(plain if unit is None else plain[:-1]) * (unit or 1.0)
    except ValueError as error:
        raise PlanError("--params", text, "a number such as 1.3B, 125M or 1.3e9") from error
    if not 1 <= count <= MAX_FIGURE:
        raise PlanError("--params", text, f"1 to {MAX_FIGURE:g}, such as 1.3B, 125M or 1.3e9")
    return count


def parse_bandwidth(text: str) -> float:
    """Read bits a second: '1Gbps', '100 Mbit/s', '2.5e8'. Raises `PlanError`."""
    match = re.fullmatch(
        r"\s*([0-9]*\.?[0-9]+(?:e[+-]?[0-9]+)?|[0-9]+\.)\s*([kmgt]?)(?:bps|bits?|bits?/s)?\s*", text.lower()
    )
    if match is None:
        raise PlanError("--bandwidth", text, "such as 1Gbps, 100Mbps or 2.5e8")
    return float(match[1]) * _UNITS[match[2]]
