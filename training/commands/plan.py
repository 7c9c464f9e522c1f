"""``trainer plan``: what a link and a model size lead to, on paper (SPEC, *Speed*, *Scale*)."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from training.commands.options import JsonOption
from training.commands.output import format_bytes, print_json, print_pairs, print_table
from training.core.errors import PlanError
from training.core.throughput import Cluster, OuterLoop, compute_least_compression, compute_speeds

_UNITS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}

_SCALES = ((1e9, 2048, 64), (1e9, 2048, 1000), (100e9, 8192, 64), (100e9, 8192, 1000))
"""(N, width, D) of the table about growth."""


def plan(
    params: Annotated[float, typer.Option(help="Parameters, such as 107e9.")] = 107e9,
    bandwidth: Annotated[str, typer.Option(help="Of one worker's link, such as 1Gbps or 100Mbps.")] = "1Gbps",
    workers: Annotated[int, typer.Option(help="D: clusters that exchange.")] = 20,
    local_steps: Annotated[int, typer.Option(help="H: inner steps between two exchanges.")] = 125,
    compression: Annotated[float, typer.Option(help="rho: bf16 bytes over ours.")] = 4.4,
    tokens_per_second: Annotated[float, typer.Option(help="Of all workers, computing only.")] = 3713.0,
    tokens_per_step: Annotated[float, typer.Option(help="Of all workers, in one inner step.")] = 33_928.0,
    goodput: Annotated[float, typer.Option(help="Share of the bandwidth that a flow gets.")] = 1.0,
    codec_seconds: Annotated[float, typer.Option(help="Compress, sum and apply, each exchange.")] = 0.0,
    stages: Annotated[int, typer.Option(min=1, max=512, help="Pipeline stages in a worker.")] = 1,
    sharding: Annotated[int, typer.Option(min=1, max=65_536, help="GPUs that share one stage.")] = 1,
    fragments: Annotated[int, typer.Option(min=1, max=256, help="F: groups of tensors, one exchanged a round.")] = 10,
    seats: Annotated[int, typer.Option(min=1, max=64, help="Storage nodes of the committee.")] = 6,
    as_json: JsonOption = False,
) -> None:
    """Print the model of speed (defaults: DiLoCoX's 107B), memory a GPU, and bytes as a run grows."""
    # It counts with the codecs, which load torch: only here, so that the other commands answer at once.

    from training.core.sizing import SHAPES, compute_memory, compute_scale, count_parameters

    cluster = Cluster(
        num_parameters=params,
        num_workers=workers,
        bandwidth_bits=parse_bandwidth(bandwidth),
        goodput=goodput,
        tokens_per_second=tokens_per_second,
        tokens_per_step=tokens_per_step,
    )
    loop = OuterLoop(local_steps=local_steps, compression=compression, codec_seconds=codec_seconds)
    speeds = compute_speeds(cluster, loop)
    sizes = {name: float(count_parameters(shape)) for name, shape in SHAPES.items()} | {"this": params}
    memory = {
        name: compute_memory(size, num_stages=stages, sharding=sharding, num_fragments=fragments)
        for name, size in sizes.items()
    }
    scales = [
        compute_scale(size, each, width=width, num_seats=seats, bandwidth_bits=cluster.bandwidth_bits)
        for size, width, each in _SCALES
    ]
    least = compute_least_compression(cluster, local_steps)
    if as_json:
        print_json(
            {
                "step_seconds": cluster.step_seconds,
                "exchange_seconds": cluster.exchange_seconds,
                "ratio": cluster.ratio,
                "least_compression": least,
                "speeds": speeds,
                "memory": memory,
                "scales": scales,
            }
        )
        return
    print_pairs(
        "Link and step",
        [
            ("one inner step", f"{cluster.step_seconds:,.2f} s"),
            ("one whole bf16 exchange", f"{cluster.exchange_seconds:,.1f} s, R = {cluster.ratio:,.0f} steps"),
            ("hidden from", f"rho {least:.2f} on at H = {local_steps}"),
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
        f"One exchange of the whole model, {seats} seats, {bandwidth}",
        ("N", "D", "bytes a parameter", "payload", "dispersed", "down", "takes", "store egress"),
        [
            (
                f"{each.num_parameters:.0e}",
                str(each.num_workers),
                f"{each.bytes_a_parameter:.4f}",
                format_bytes(each.payload_bytes),
                format_bytes(each.dispersed_bytes),
                format_bytes(each.down_bytes),
                f"{each.down_seconds:,.0f} s",
                format_bytes(each.egress_bytes),
            )
            for each in scales
        ],
    )


def parse_bandwidth(text: str) -> float:
    """Read bits a second: '1Gbps', '100 Mbit/s', '2.5e8'. Raises `PlanError`."""
    match = re.fullmatch(
        r"\s*([0-9]*\.?[0-9]+(?:e[+-]?[0-9]+)?|[0-9]+\.)\s*([kmgt]?)(?:bps|bits?|bits?/s)?\s*", text.lower()
    )
    if match is None:
        raise PlanError("--bandwidth", text, "such as 1Gbps, 100Mbps or 2.5e8")
    return float(match[1]) * _UNITS[match[2]]
