"""Quality at equal tokens: AllReduce, DiLoCo, DiLoCoX, delayed, eager, ours, SparseLoCo, int8; bytes, codecs, steps.

``python -m benchmarks.training`` trains every method of the scenario ``main`` on the standard library's source from the
same start and samples, one seed, one process a core; ``FULL=1`` all scenarios and seeds; ``--scenario NAME`` one;
``RATES=1`` or ``--rates`` half and twice each method's rate instead (`training_rates`).
It prints a table and writes ``benchmarks/results/training.json``, ``quality_runs.json`` (every loss by scenario,
method, seed and step) and ``training.svg``.  ``--resume`` keeps runs of the same recipe that a stopped invocation
has done.
Small models overstate every gap; differences under 0.006 nats are noise (TRAINING).
"""

from __future__ import annotations

import argparse
import os
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from statistics import mean

import torch

from benchmarks.quality_methods import METHODS, SCENARIOS, Scenario
from benchmarks.quality_runs import Run, Task, load_runs, save_runs, train
from benchmarks.report import RESULTS, Goal, Row, write_report
from benchmarks.training_bytes import make_byte_rows
from benchmarks.training_parts import is_set
from benchmarks.training_plot import write_plot
from benchmarks.training_rates import make_rate_rows, plan_rates
from benchmarks.training_speed import make_speed_rows

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
    is_full = is_set("FULL")
    parser.add_argument("--scenario", action="append", default=[], choices=sorted(SCENARIOS), help="may be given again")
    parser.add_argument(
        "--only", action="append", default=[], choices=sorted(METHODS), help="only this method, likewise"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes, one thread each")
    parser.add_argument("--resume", action="store_true", help="keep what a stopped run of the same recipes has")
    parser.add_argument("--rates", action="store_true", default=is_set("RATES"), help="half and twice each rate")
    options = parser.parse_args()
    torch.set_num_threads(1)
    chosen = [
        scenario
        for scenario in SCENARIOS.values()
        if (
            scenario.name in options.scenario
            if options.scenario
            else not scenario.is_full_only or (is_full and not options.rates)
        )
    ]
    tasks = [
        task
        for scenario in chosen
        for task in (plan_rates(scenario) if options.rates else _plan(scenario, is_full or bool(options.scenario)))
        if not options.only or task.method in options.only
    ]
    started = time.perf_counter()
    runs = _train_all(tasks, options.jobs, is_resumed=options.resume)
    trained = time.perf_counter()
    if options.rates:
        write_report("training_rates", [row for scenario in chosen for row in make_rate_rows(scenario, runs)])
        return
    rows = [row for scenario in SCENARIOS.values() for row in make_loss_rows(scenario, _select(scenario, runs))]
    write_report("training", [*rows, *make_byte_rows(), *make_speed_rows()])
    for scenario in SCENARIOS.values():
        curves = {method: each[0].points for method, each in _select(scenario, runs).items()}
        if curves:
            name = "training.svg" if scenario.name == "main" else f"training_{scenario.name}.svg"
            write_plot(RESULTS / name, curves, scenario.describe())
    if not is_full:
        left_out = [scenario.name for scenario in SCENARIOS.values() if scenario.is_full_only]
        print(f"left out here, in FULL=1: the second seed; scenarios {', '.join(left_out)}")
    parts = time.perf_counter() - trained
    print(f"wall time: losses {trained - started:.0f} s ({len(tasks)} runs asked for), bytes and speed {parts:.0f} s")


def _plan(scenario: Scenario, has_all_seeds: bool) -> list[Task]:
    """Return a scenario's runs."""
    return [
        Task(scenario=scenario.name, method=method, seed=seed)
        for seed in range(scenario.num_seeds if has_all_seeds else 1)
        for method in scenario.methods
    ]


def _train_all(tasks: list[Task], num_jobs: int, *, is_resumed: bool) -> dict[str, Run]:
    """Return all runs that are there, these among them; each is saved as it ends."""
    path = RESULTS / "quality_runs.json"
    runs = load_runs(path)
    with ProcessPoolExecutor(max_workers=num_jobs, mp_context=get_context("spawn")) as pool:
        waiting = {pool.submit(train, task): task for task in tasks if not (is_resumed and task.is_done(runs))}
        for done in as_completed(waiting):
            key, run = waiting[done].key, done.result()
            runs[key] = run
            save_runs(path, runs)
            print(f"{key:36s} loss {run.loss:.4f}  {run.cpu_seconds:.0f} CPU s", flush=True)
    return runs


def _select(scenario: Scenario, runs: dict[str, Run]) -> dict[str, list[Run]]:
    """Return a scenario's runs by method, those of its present recipes only."""
    selected: dict[str, list[Run]] = {}
    for method in scenario.methods:
        tasks = [Task(scenario=scenario.name, method=method, seed=seed) for seed in range(scenario.num_seeds)]
        each = [runs[task.key] for task in tasks if task.is_done(runs)]
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
                peer_value=mean(run.loss for run in runs[peer][: len(each)]) if peer in runs else 0.0,
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


if __name__ == "__main__":
    main()
