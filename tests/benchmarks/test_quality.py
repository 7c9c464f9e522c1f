"""What the benchmark of schemes compares, and which runs it takes for done."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from benchmarks.quality_methods import METHODS, SCENARIOS, SMALL
from benchmarks.quality_runs import Run, Task
from benchmarks.training_bytes import RUN_LENGTHS, count, make_byte_rows, measure_volumes
from benchmarks.training_parts import PARTS, QUALITY, Done, describe_failures, is_set, make_wall_rows
from benchmarks.training_rates import SCALES, make_rate_rows, plan_rates
from training.core.recipe_text import compute_fingerprint
from training.data.corpus import load_corpus
from training.simulate import simulate

ASKED_FOR = {"allreduce", "diloco", "delayed", "eager", "default", "sparseloco", "int8"}
"""At H 20 and 50, and with 2, 4 and 8 workers."""


@pytest.mark.parametrize(("num_workers", "local_steps"), [(2, 20), (4, 20), (8, 20), (4, 50)])
def test_every_scheme_runs_in_every_place(num_workers: int, local_steps: int) -> None:
    compared = [
        set(scenario.methods)
        for scenario in SCENARIOS.values()
        if (scenario.num_workers, scenario.local_steps, scenario.model) == (num_workers, local_steps, SMALL)
    ]
    assert set().union(*compared) >= ASKED_FOR


def test_the_quick_run_has_every_scheme() -> None:
    assert not SCENARIOS["main"].is_full_only
    assert set(SCENARIOS["main"].methods) >= ASKED_FOR


def test_a_scenario_s_own_rate_is_the_one_that_is_trained() -> None:
    scenario = next(each for each in SCENARIOS.values() if each.rates)
    method, rate = next(iter(scenario.rates.items()))
    assert METHODS[method].learning_rate != rate
    task = Task(scenario=scenario.name, method=method, seed=0)
    assert task.make_recipe().inner.learning_rate == rate
    assert replace(task, rate_scale=2).make_recipe().inner.learning_rate == 2 * rate


def test_a_scenario_s_own_outer_schedule_is_trained_by_that_method_alone() -> None:
    scenario = next(each for each in SCENARIOS.values() if each.outers)
    method, outer = next(iter(scenario.outers.items()))
    own = {name: Task(scenario=scenario.name, method=name, seed=0).make_recipe().outer for name in scenario.methods}
    elsewhere = {name: Task(scenario="main", method=name, seed=0).make_recipe().outer for name in scenario.methods}
    assert own == elsewhere | {method: outer}
    assert own[method] != elsewhere[method]


def test_rates_are_said_to_be_best_only_where_they_are() -> None:
    runs: dict[str, Run] = {}
    losses = {"default": {0.5: 1.4, 1: 1.3, 2: 1.5}, "eager": {0.5: 2.1, 1: 2.0, 2: 1.9}}
    for task in plan_rates(SCENARIOS["main"]):
        if task.method in losses:
            runs[task.key] = _make_run(task, losses[task.method][task.rate_scale])
    rows = {row.name: row for row in make_rate_rows(SCENARIOS["main"], runs)}
    assert set(rows) == {"rate_main_default", "rate_main_eager"}
    good, bad = rows["rate_main_default"], rows["rate_main_eager"]
    assert good.goal is not None
    assert good.goal.is_met_by(good)
    assert "is the best of these" in good.conditions
    assert bad.goal is not None
    assert not bad.goal.is_met_by(bad)
    assert "not the best, 0.008 is" in bad.conditions
    assert len({task.key for task in plan_rates(SCENARIOS["main"])}) == len(SCALES) * len(SCENARIOS["main"].methods)


def test_a_run_of_another_recipe_is_not_taken_for_done() -> None:
    task = Task(scenario="main", method="default", seed=0)
    run = _make_run(task, 1.3)
    assert task.is_done({task.key: run})
    assert not task.is_done({task.key: replace(run, recipe=bytes(32).hex())})
    assert not replace(task, rate_scale=2).is_done({task.key: run})


def test_bytes_with_the_flush_are_those_that_workers_send() -> None:
    """The rows come from plans; here a worker sends one exchange and the flush."""
    volumes = measure_volumes()
    recipe = Task(scenario="main", method="default", seed=0).make_recipe()
    recipe = replace(recipe, rounds=replace(recipe.rounds, local_steps=10, num_rounds=10))
    sent: list[int] = []
    simulate(recipe, load_corpus(recipe.data), 1, lambda done: sent.append(done.payload_bytes))
    assert sum(sent[:10]) == volumes.exchange.payload_bytes
    assert sum(sent[10:]) == volumes.flush.payload_bytes


def test_the_break_even_is_the_shortest_run_that_reaches_the_goal() -> None:
    volumes = measure_volumes()
    length = volumes.compute_break_even()
    allowed = volumes.allreduce_step_bytes / 1_000
    assert volumes.compute_step_bytes(length) <= allowed < volumes.compute_step_bytes(length - 1)
    assert count(volumes.flush) > 5 * count(volumes.exchange), "it would not be worth a row"
    rows = {row.name: row.value for row in make_byte_rows()}
    alone, *with_flush = (
        rows["bytes_per_token_vs_allreduce"],
        *(rows[f"bytes_per_token_vs_allreduce_{length}_exchanges_and_flush"] for length in RUN_LENGTHS),
    )
    assert with_flush == sorted(with_flush)
    assert with_flush[-1] < alone


def test_a_part_that_failed_is_named_and_ends_with_a_code() -> None:
    finished = [Done(part=part, seconds=300, code=int(part.name == "peer")) for part in PARTS]
    message = describe_failures(finished)
    assert message is not None
    assert "benchmarks.training_peer" in message
    assert "training_links" not in message
    assert describe_failures([Done(part=QUALITY, seconds=1, code=0)]) is None
    *_, total = make_wall_rows(finished, "two cores", is_quick=True)
    assert (total.name, total.value) == ("wall_s_total", 900)
    assert total.goal is None, "a part that failed may have been quick about it"
    *_, total = make_wall_rows([replace(done, code=0) for done in finished], "two cores", is_quick=True)
    assert total.goal is not None
    assert total.goal.is_met_by(total)


@pytest.mark.parametrize(("value", "expected"), [("1", True), ("0", False), ("", False), ("no", False)])
def test_switches_of_make(value: str, expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "FULL", value)
    assert is_set("FULL") is expected


def _make_run(task: Task, loss: float) -> Run:
    recipe = task.make_recipe()
    return Run(
        recipe=compute_fingerprint(recipe).hex(),
        learning_rate=recipe.inner.learning_rate,
        steps=800,
        points=[(800, loss)],
        payload_bytes=0,
        cpu_seconds=1.0,
    )
