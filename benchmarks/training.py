"""Quality at equal tokens and bytes: AllReduce, DiLoCo, DiLoCoX, eager, ours, SparseLoCo, int8; codec and outer step.

``python -m benchmarks.training`` trains every method of the scenario ``main`` on the standard library's source from the
same start and samples, one seed, one process a core; ``FULL=1`` all scenarios and seeds; ``--scenario NAME`` one.
It prints a table and writes ``benchmarks/results/training.json``, ``quality_runs.json`` (every loss by scenario,
method, seed and step) and ``training.svg``.  ``--resume`` keeps runs of the same recipe that a stopped invocation
has done.
Small models overstate every gap; differences under 0.006 nats are noise (TRAINING).
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from statistics import mean

import torch

from benchmarks.quality_methods import FRAGMENTS, METHODS, RANK, SCENARIOS, Scenario, make_common
from benchmarks.quality_runs import Run, Task, load_runs, save_runs, train
from benchmarks.report import RESULTS, Goal, Row, write_report
from benchmarks.training_plot import write_plot
from training.core.canonical import create_genesis
from training.core.codecs.protocol import Slot
from training.core.codecs.registry import codec_of, plan_slot
from training.core.layout import build_layout
from training.core.payload import plan_payload
from training.core.recipe import CodecKind
from training.core.recipe_text import compute_fingerprint
from training.core.schedule import OuterCoefficients
from training.core.settle import step_tensor
from training.simulate import compute_traffic

TRAFFIC_STEPS = 125
"""H of the rows about bytes (DiLoCoX's)."""

_GAPS = {
    "gap_default_vs_diloco_pct": ("default", "diloco_muon", Goal(most=0.5)),
    "gap_default_vs_diloco_adamw_pct": ("default", "diloco", Goal(most=0.5)),
    "gap_default_adamw_vs_diloco_adamw_pct": ("default_adamw", "diloco", Goal(most=0.5)),
    "gap_dilocox_vs_diloco_pct": ("dilocox", "diloco", None),
    "gap_dilocox_muon_vs_diloco_pct": ("dilocox_muon", "diloco_muon", None),
    "gap_diloco_adamw_vs_allreduce_adamw_pct": ("diloco", "allreduce", None),
    "gap_diloco_vs_allreduce_pct": ("diloco_muon", "allreduce_muon", Goal(most=4.5)),
    "gap_diloco_muon_vs_allreduce_adamw_pct": ("diloco_muon", "allreduce", Goal(most=4.5)),
    "gap_default_vs_allreduce_adamw_pct": ("default", "allreduce", None),
    "gap_default_vs_allreduce_pct": ("default", "allreduce_muon", None),
}
"""Row: (method, compared with, goal). Rows that do not say AdamW compare methods with Muon inside."""


def main() -> None:
    """Train, measure and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    is_full = os.environ.get("FULL", "") not in ("", "0")
    parser.add_argument("--scenario", action="append", default=[], choices=sorted(SCENARIOS), help="may be given again")
    parser.add_argument(
        "--only", action="append", default=[], choices=sorted(METHODS), help="only this method, likewise"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes, one thread each")
    parser.add_argument("--resume", action="store_true", help="keep what a stopped run of the same recipes has")
    options = parser.parse_args()
    torch.set_num_threads(1)
    chosen = [
        scenario
        for scenario in SCENARIOS.values()
        if (scenario.name in options.scenario if options.scenario else is_full or not scenario.is_full_only)
    ]
    path = RESULTS / "quality_runs.json"
    runs = load_runs(path)
    tasks = [
        Task(scenario=scenario.name, method=method, seed=seed)
        for scenario in chosen
        for seed in range(scenario.num_seeds if is_full or options.scenario else 1)
        for method in scenario.methods
        if not options.only or method in options.only
    ]
    if options.resume:
        tasks = [task for task in tasks if not _is_done(task, runs)]
    with ProcessPoolExecutor(max_workers=options.jobs, mp_context=get_context("spawn")) as pool:
        waiting = {pool.submit(train, task): task for task in tasks}
        for done in as_completed(waiting):
            key, run = waiting[done].key, done.result()
            runs[key] = run
            save_runs(path, runs)
            print(f"{key:36s} loss {run.loss:.4f}  {run.cpu_seconds:.0f} CPU s", flush=True)
    rows = [row for scenario in SCENARIOS.values() for row in make_loss_rows(scenario, _select(scenario, runs))]
    write_report("training", [*rows, *make_byte_rows(), *make_speed_rows()])
    for scenario in SCENARIOS.values():
        curves = {method: each[0].points for method, each in _select(scenario, runs).items()}
        if curves:
            name = "training.svg" if scenario.name == "main" else f"training_{scenario.name}.svg"
            write_plot(RESULTS / name, curves, scenario.describe())


def _is_done(task: Task, runs: dict[str, Run]) -> bool:
    return task.key in runs and runs[task.key].recipe == compute_fingerprint(task.make_recipe()).hex()


def _select(scenario: Scenario, runs: dict[str, Run]) -> dict[str, list[Run]]:
    """Return a scenario's runs by method, those of its present recipes only."""
    selected: dict[str, list[Run]] = {}
    for method in scenario.methods:
        tasks = [Task(scenario=scenario.name, method=method, seed=seed) for seed in range(scenario.num_seeds)]
        each = [runs[task.key] for task in tasks if _is_done(task, runs)]
        if each:
            selected[method] = each
    return selected


def make_loss_rows(scenario: Scenario, runs: dict[str, list[Run]]) -> list[Row]:
    """Return a row for each method beside uncompressed synchronous DiLoCo, and the gaps of means over equal seeds."""
    prefix = "" if scenario.name == "main" else f"{scenario.name}_"
    rows = []
    for name, each in runs.items():
        peer = "diloco" if METHODS[name].optimizer is METHODS["diloco"].optimizer else "diloco_muon"
        rows.append(
            Row(
                name=f"{prefix}loss_{name}",
                value=mean(run.loss for run in each),
                unit="nats/byte",
                peer=peer,
                peer_value=mean(run.loss for run in runs[peer]) if peer in runs else 0.0,
                conditions=f"{scenario.describe()}; inner rate {each[0].learning_rate};"
                f" each seed from 0: {', '.join(f'{run.loss:.4f}' for run in each)};"
                f" {each[0].payload_bytes:,} payload bytes a worker",
            )
        )
    for name, (ours, theirs, goal) in _GAPS.items():
        gap = _compute_gap(runs, ours, theirs)
        if gap is not None:
            is_goal_here = scenario.name == "main"
            rows.append(
                Row(
                    name=prefix + name,
                    value=gap,
                    unit="%",
                    peer=theirs,
                    peer_value=0.0,
                    conditions=f"{scenario.describe()}; mean of {_count_seeds(runs, ours, theirs)} seed(s) from 0",
                    goal=goal if is_goal_here else None,
                )
            )
    ours_gap, theirs_gap = (
        _compute_gap(runs, "default", "diloco_muon"),
        _compute_gap(runs, "dilocox_muon", "diloco_muon"),
    )
    if ours_gap is not None and theirs_gap is not None:
        rows.append(
            Row(
                name=f"{prefix}gap_ratio_default_vs_dilocox",
                value=ours_gap,
                unit="%",
                peer="dilocox_muon",
                peer_value=theirs_gap,
                conditions=f"{scenario.describe()}; gaps to synchronous DiLoCo, Muon inside all three",
                goal=Goal(most=0.25, is_ratio=True),
            )
        )
    return rows


def _count_seeds(runs: dict[str, list[Run]], ours: str, theirs: str) -> int:
    """Return how many seeds both methods have."""
    return min(len(runs.get(ours, [])), len(runs.get(theirs, [])))


def _compute_gap(runs: dict[str, list[Run]], ours: str, theirs: str) -> float | None:
    """Return the gap in % over the seeds that both have, or None."""
    both = _count_seeds(runs, ours, theirs)
    if both == 0:
        return None
    losses = [mean(run.loss for run in runs[name][:both]) for name in (ours, theirs)]
    return 100.0 * (losses[0] / losses[1] - 1.0)


def make_byte_rows() -> list[Row]:
    """Return what our default moves beside bf16 AllReduce at H = 125: payloads up with n/k, and down."""
    scenario = Scenario(name="bytes", methods=("default",), local_steps=TRAFFIC_STEPS)
    recipe = METHODS["default"].recipe(make_common(scenario, 0))
    state, parameters = create_genesis(recipe), build_layout(recipe).num_parameters
    payload_bytes, flush_bytes = (
        sum(plan_payload(recipe, state, first + index, rank=RANK).num_bytes for index in range(FRAGMENTS))
        for first in (0, recipe.rounds.num_rounds)
    )
    num_exchanges = SCENARIOS["main"].num_steps // SCENARIOS["main"].local_steps
    with_flush = (num_exchanges * payload_bytes + flush_bytes) / (num_exchanges + 1)
    num_workers = scenario.num_workers
    traffic = compute_traffic(payload_bytes, num_workers)
    ours = (traffic.up_bytes + traffic.down_bytes) / TRAFFIC_STEPS
    allreduce = 2 * 2 * (num_workers - 1) / num_workers * 2 * parameters
    conditions = (
        f"a worker and step, sent and received: ours {ours:,.0f} bytes (payloads of"
        f" {payload_bytes / parameters:.4f} bytes a parameter and exchange, n/k = 2, H {TRAFFIC_STEPS}, F {FRAGMENTS},"
        f" D {num_workers}), ring AllReduce of bf16 gradients {allreduce:,.0f}; chain not counted, nor the flush at the"
        f" end (once, int8: {parameters:,} bytes) nor a checkpoint ({8 * parameters:,} bytes of theta and u)"
    )
    return [
        Row(
            name="bytes_per_token_vs_allreduce",
            value=allreduce / ours,
            unit="x less",
            peer="bf16 AllReduce",
            peer_value=1.0,
            conditions=conditions,
            goal=Goal(least=1_000),
        ),
        Row(
            name="bytes_per_parameter",
            value=payload_bytes / parameters,
            unit="bytes",
            peer="bf16 gradient",
            peer_value=2.0,
            conditions="one payload of every fragment over all parameters, the same in every exchange but the last, the"
            f" flush, which takes {flush_bytes / parameters:.4f}; {with_flush / parameters:.4f} on average over"
            f" {num_exchanges} exchanges and the flush",
            goal=Goal(most=0.09),
        ),
    ]


def make_speed_rows() -> list[Row]:
    """Return codec and outer step, one thread, CPU seconds of the best of three."""
    shape = (768, 3072)
    generator = torch.Generator().manual_seed(0)
    units = (torch.randn(shape, generator=generator) * 2**20).long()
    slot = plan_slot(CodecKind.LOW_RANK_2BIT, "matrix", shape, rank=24, exponent=14)
    codec = codec_of(slot)
    first = codec.compress(units, slot, None, bytes(32))
    compress = _measure(lambda: codec.compress(units, slot, first.warm, bytes(32)))
    total = torch.zeros(shape, dtype=torch.int64)
    add = _measure(lambda: total.add_(codec.decode(first.body, slot)[0]))
    num_bytes = 4 * units.numel()
    where = "768 x 3072, rank 24 (3 % of the width), fp32 bytes a CPU second, one thread, best of 3"
    rows = [
        Row(
            name=name,
            value=num_bytes / seconds / 1e9,
            unit="GB/s",
            peer="dense int8",
            peer_value=num_bytes / peer / 1e9,
            conditions=where,
        )
        for name, seconds, peer in (
            ("codec_gb_s", compress, _measure_int8(units, is_compress=True)),
            ("decode_and_sum_gb_s", add, _measure_int8(units, is_compress=False)),
        )
    ]
    pieces = 10
    theta = torch.randint(-(2**28), 2**28, (12_500_000,), generator=generator, dtype=torch.int32)
    update = torch.randint(-(2**20), 2**20, (12_500_000,), generator=generator)
    coefficients = OuterCoefficients(momentum_q15=20_000, rate_q15=30_000)
    step = pieces * _measure(lambda: step_tensor(theta, theta, update, coefficients))
    values = theta.float()
    adamw = pieces * _measure(lambda: values.mul(0.9).add_(update.float()))
    rows.append(
        Row(
            name="outer_step_125m_s",
            value=step,
            unit="s",
            peer="the same in float32, not agreed",
            peer_value=adamw,
            conditions="ten tensors of 12.5M, momentum and step in int64, CPU seconds of one thread, best of 3",
        )
    )
    return rows


def _measure_int8(units: torch.Tensor, *, is_compress: bool) -> float:
    slot: Slot = plan_slot(CodecKind.DENSE_INT8, "matrix", tuple(units.shape), rank=1, exponent=10)
    codec = codec_of(slot)
    body = codec.compress(units, slot, None, bytes(32)).body
    if is_compress:
        return _measure(lambda: codec.compress(units, slot, None, bytes(32)))
    total = torch.zeros_like(units)
    return _measure(lambda: total.add_(codec.decode(body, slot)[0]))


def _measure(work: Callable[[], object]) -> float:
    """Return the CPU seconds of one call, best of three: other processes take time, but no CPU time of ours."""
    best = float("inf")
    for _ in range(3):
        start = time.process_time()
        work()
        best = min(best, time.process_time() - start)
    return best


if __name__ == "__main__":
    main()
