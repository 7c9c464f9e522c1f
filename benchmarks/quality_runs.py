"""Train one method from one seed, and keep every loss by scenario, method and seed.

``benchmarks/results/quality_runs.json`` holds a run under ``scenario/method/seed`` with the fingerprint of its recipe,
so a run of another recipe is never taken for it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from benchmarks.quality_methods import METHODS, SCENARIOS, make_recipe
from training.baselines import train_allreduce
from training.core.canonical import CanonicalState
from training.core.recipe import Recipe
from training.core.recipe_text import compute_fingerprint
from training.data.corpus import load_corpus
from training.evaluation import evaluate_state
from training.simulate import SimulatedRound, simulate

NUM_POINTS = 8
"""Losses along a run, for the plot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One training to be done."""

    scenario: str
    """By name."""
    method: str
    """By name."""
    seed: int
    """From 0."""
    rate_scale: float = 1.0
    """Times the inner rate that the method has in the scenario."""

    @property
    def key(self) -> str:
        """Return ``scenario/method/seed``, or ``scenario/method*scale/seed`` at another rate than the method's."""
        scale = "" if self.rate_scale == 1 else f"*{self.rate_scale:g}"
        return f"{self.scenario}/{self.method}{scale}/{self.seed}"

    def make_recipe(self) -> Recipe:
        """Return the recipe that is trained."""
        return make_recipe(METHODS[self.method], SCENARIOS[self.scenario], self.seed, self.rate_scale)

    def is_done(self, runs: Mapping[str, Run]) -> bool:
        """Say whether a run of the very same recipe is there."""
        return self.key in runs and runs[self.key].recipe == compute_fingerprint(self.make_recipe()).hex()


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One training that was done."""

    recipe: str
    """Fingerprint, hex."""
    learning_rate: float
    """Peak inner rate."""
    steps: int
    """Inner steps of each worker."""
    points: list[tuple[int, float]]
    """(inner steps a worker, held-out loss of the agreed theta); the last one after the flush."""
    payload_bytes: int
    """Sent by one worker in the whole run, flush included; 0 for AllReduce."""
    cpu_seconds: float
    """Of all workers and the exchange, in one thread, losses along the run left out."""

    @property
    def loss(self) -> float:
        """Return the loss at the end."""
        return self.points[-1][1]


def train(task: Task) -> Run:
    """Train one method from one seed, in one thread."""
    torch.set_num_threads(1)
    recipe, scenario, method = task.make_recipe(), SCENARIOS[task.scenario], METHODS[task.method]
    corpus = load_corpus(recipe.data)
    num_rounds, points, payload_bytes = recipe.rounds.num_rounds, [], 0
    started, spent_on_losses = time.process_time(), 0.0

    def see(round_index: int, state: CanonicalState) -> None:
        nonlocal spent_on_losses
        is_point = (round_index + 1) * NUM_POINTS // num_rounds != round_index * NUM_POINTS // num_rounds
        if round_index < num_rounds and is_point:
            before = time.process_time()
            steps = (round_index + 1) * recipe.rounds.local_steps // recipe.rounds.num_fragments
            points.append((steps, evaluate_state(recipe, state, corpus)))
            spent_on_losses += time.process_time() - before

    def see_round(done: SimulatedRound) -> None:
        nonlocal payload_bytes
        payload_bytes += done.payload_bytes
        see(done.round_index, done.settlement.state)

    if method.is_allreduce:
        state = train_allreduce(recipe, corpus, scenario.num_workers, see)
    else:
        state, _ = simulate(recipe, corpus, scenario.num_workers, see_round)
    cpu_seconds = time.process_time() - started - spent_on_losses
    points.append((points[-1][0], evaluate_state(recipe, state, corpus)))
    return Run(
        recipe=compute_fingerprint(recipe).hex(),
        learning_rate=recipe.inner.learning_rate,
        steps=points[-1][0],
        points=points,
        payload_bytes=payload_bytes,
        cpu_seconds=cpu_seconds,
    )


def load_runs(path: Path) -> dict[str, Run]:
    """Read what `save_runs` wrote, by key; nothing where there is no such file."""
    saved = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return {
        key: Run(**{**fields, "points": [(step, loss) for step, loss in fields["points"]]})
        for key, fields in saved.items()
    }


def save_runs(path: Path, runs: dict[str, Run]) -> None:
    """Write every run so far, so that what is stopped has not been in vain."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({key: asdict(runs[key]) for key in sorted(runs)}, indent=1) + "\n", encoding="utf-8")
