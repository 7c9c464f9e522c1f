"""Bytes of our default beside a bf16 AllReduce, by count: exchanges alone, with the flush, with checkpoints.

D = 4 and H = 125, as DiLoCoX has it.  A worker's exchange is its payloads up as whole shards (n/k = 2) and those of
the others down; the flush sends the whole model once, in int8, and costs the more the shorter a run is.  Checkpoints
are no payload traffic and have rows of their own.  The chain's own bytes are not counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from benchmarks.quality_methods import FRAGMENTS, METHODS, RANK, Scenario, make_common
from benchmarks.report import Goal, Row
from training.core.canonical import create_genesis
from training.core.layout import build_layout
from training.core.payload import plan_payload
from training.core.throughput import BF16_BYTES
from training.simulate import NO_TRAFFIC, Traffic, compute_traffic

TRAFFIC_STEPS = 125
"""H (DiLoCoX's)."""

GOAL = 1_000.0
"""Times fewer bytes than AllReduce."""

RUN_LENGTHS = (40, 400)
"""Exchanges of a run: as in the quality table, and ten times as long."""

CHECKPOINT_BYTES = 8
"""A parameter: theta and u."""

CHECKPOINT_EXCHANGES = 2
"""Between two checkpoints, where ``trainer run create`` is not told otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Volumes:
    """What one worker moves."""

    parameters: int
    """P."""
    exchange: Traffic
    """All fragments once."""
    flush: Traffic
    """All fragments once more, at the end."""
    checkpoint_bytes: float
    """Its share of one checkpoint's parts, up as shards."""
    allreduce_step_bytes: float
    """Sent and received in a step by a ring of bf16 gradients."""

    def compute_step_bytes(self, num_exchanges: int) -> float:
        """Return the bytes of an inner step in a run of so many exchanges and one flush."""
        return (num_exchanges * count(self.exchange) + count(self.flush)) / (num_exchanges * TRAFFIC_STEPS)

    def compute_break_even(self) -> int:
        """Return the least number of exchanges at which a run, flush included, moves `GOAL` times fewer bytes."""
        allowed = self.allreduce_step_bytes / GOAL * TRAFFIC_STEPS
        return ceil(count(self.flush) / (allowed - count(self.exchange)))


def count(traffic: Traffic) -> int:
    """Return bytes up and down."""
    return traffic.up_bytes + traffic.down_bytes


def measure_volumes() -> Volumes:
    """Return the bytes of our default, from the payloads that its recipe makes."""
    scenario = Scenario(name="bytes", methods=("default",), local_steps=TRAFFIC_STEPS)
    num_workers = scenario.num_workers
    recipe = METHODS["default"].recipe(make_common(scenario, 0))
    state, parameters = create_genesis(recipe), build_layout(recipe).num_parameters

    def add_up(first_round: int) -> Traffic:
        total = NO_TRAFFIC
        for round_index in range(first_round, first_round + FRAGMENTS):
            size = plan_payload(recipe, state, round_index, rank=RANK).num_bytes
            total += compute_traffic(size, num_workers)
        return total

    return Volumes(
        parameters=parameters,
        exchange=add_up(0),
        flush=add_up(recipe.rounds.num_rounds),
        checkpoint_bytes=compute_traffic(CHECKPOINT_BYTES * parameters, num_workers).up_bytes / num_workers,
        allreduce_step_bytes=2 * 2 * (num_workers - 1) / num_workers * BF16_BYTES * parameters,
    )


def make_byte_rows() -> list[Row]:
    """Return bytes a step beside AllReduce's, and bytes a parameter."""
    volumes = measure_volumes()
    steady = count(volumes.exchange) / TRAFFIC_STEPS
    allreduce, parameters = volumes.allreduce_step_bytes, volumes.parameters
    payload_bytes, flush_bytes = volumes.exchange.payload_bytes, volumes.flush.payload_bytes
    where = (
        f"a worker and step, sent and received, by count: AllReduce, a ring of bf16, {allreduce:,.0f} bytes; ours up as"
        f" whole shards, n/k = 2, and down; H {TRAFFIC_STEPS}, F {FRAGMENTS}, D 4, {parameters:,} parameters"
    )
    rows = [
        _make_ratio_row(
            "bytes_per_token_vs_allreduce",
            allreduce / steady,
            f"exchanges alone, {steady:,.0f} bytes, payloads of {payload_bytes / parameters:.4f} bytes a parameter;"
            f" flush and checkpoints in the rows below; {where}",
        )
    ]
    for length in RUN_LENGTHS:
        step_bytes = volumes.compute_step_bytes(length)
        rows.append(
            _make_ratio_row(
                f"bytes_per_token_vs_allreduce_{length}_exchanges_and_flush",
                allreduce / step_bytes,
                f"all payload traffic of a run of {length} exchanges ({length * TRAFFIC_STEPS:,} steps), flush"
                f" included, {step_bytes:,.0f} bytes; {where}",
            )
        )
    rows.append(
        Row(
            name="exchanges_until_1000x_with_flush",
            value=volumes.compute_break_even(),
            unit="exchanges",
            peer="quality table",
            peer_value=float(RUN_LENGTHS[0]),
            conditions=f"shortest run whose payload traffic, flush included, is {GOAL:,.0f} times less; {where}",
        )
    )
    length = RUN_LENGTHS[-1]
    for apart in (CHECKPOINT_EXCHANGES, RUN_LENGTHS[0]):
        checkpoint = volumes.checkpoint_bytes / (apart * TRAFFIC_STEPS)
        rows.append(
            _make_ratio_row(
                f"bytes_per_token_vs_allreduce_checkpoint_every_{apart}_exchanges",
                allreduce / (volumes.compute_step_bytes(length) + checkpoint),
                f"{length} exchanges, flush, and a checkpoint every {apart} exchanges"
                f"{' (what run create sets)' if apart == CHECKPOINT_EXCHANGES else ''}: {checkpoint:,.0f} bytes more,"
                f" {CHECKPOINT_BYTES} a parameter and checkpoint, whose parts the members share, n/k = 2; {where}",
                goal=None,
            )
        )
    with_flush = (RUN_LENGTHS[0] * payload_bytes + flush_bytes) / (RUN_LENGTHS[0] + 1)
    rows.append(
        Row(
            name="bytes_per_parameter",
            value=payload_bytes / parameters,
            unit="bytes",
            peer="bf16 gradient",
            peer_value=float(BF16_BYTES),
            conditions="one payload of every fragment over all parameters, the same in every exchange but the last, the"
            f" flush, which takes {flush_bytes / parameters:.4f}; {with_flush / parameters:.4f} on average over"
            f" {RUN_LENGTHS[0]} exchanges and the flush",
            goal=Goal(most=0.09),
        )
    )
    return rows


def _make_ratio_row(name: str, value: float, conditions: str, goal: Goal | None = Goal(least=GOAL)) -> Row:
    return Row(
        name=name,
        value=value,
        unit="x less",
        peer="bf16 AllReduce",
        peer_value=1.0,
        conditions=conditions,
        goal=goal,
    )
