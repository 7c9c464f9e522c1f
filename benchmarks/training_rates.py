"""Whether each method has the inner rate that is best for it: half of it, itself and twice it, from seed 0.

``make bench-training RATES=1`` (or ``python -m benchmarks.training --rates``, with ``--scenario`` and ``--only``) does
the scenario ``main``; a row says the loss by rate, and meets its goal where no other rate ended lower.
"""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.quality_methods import Scenario
from benchmarks.quality_runs import Run, Task
from benchmarks.report import Goal, Row

SCALES = (0.5, 1.0, 2.0)
"""Times the method's own rate."""

SEED = 0
"""The one that the rates were chosen from."""


def plan_rates(scenario: Scenario) -> list[Task]:
    """Return every method of a scenario at every rate."""
    return [
        Task(scenario=scenario.name, method=method, seed=SEED, rate_scale=scale)
        for method in scenario.methods
        for scale in SCALES
    ]


def make_rate_rows(scenario: Scenario, runs: Mapping[str, Run]) -> list[Row]:
    """Return a row for each method that has run at its own rate and at another."""
    rows = []
    for method in scenario.methods:
        done = [task for task in plan_rates(scenario) if task.method == method and task.is_done(runs)]
        chosen = next((runs[task.key] for task in done if task.rate_scale == 1), None)
        if chosen is None or len(done) == 1:
            continue
        others = [runs[task.key] for task in done if task.rate_scale != 1]
        best = min(others, key=lambda run: run.loss)
        by_rate = ", ".join(f"{runs[task.key].learning_rate:g}: {runs[task.key].loss:.4f}" for task in done)
        word = "the best" if chosen.loss <= best.loss else f"not the best, {best.learning_rate:g} is"
        rows.append(
            Row(
                name=f"rate_{scenario.name}_{method}",
                value=chosen.loss,
                unit="nats/byte",
                peer="best other rate",
                peer_value=best.loss,
                conditions=f"loss by inner rate: {by_rate}; the chosen one, {chosen.learning_rate:g}, is {word} of"
                f" these; seed {SEED}, differences under 0.006 are noise; {scenario.describe()}",
                goal=Goal(most=1.0, is_ratio=True),
            )
        )
    return rows
