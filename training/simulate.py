"""Run a recipe's rounds in one process, without chain or store: ``python -m training.simulate demo``.

The members take turns, so it also tells how much compute each of them needs.  It shows the loss of the agreed
theta, checks that every worker settles on one root, and prints what a round sends.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from training.core.canonical import CanonicalState, create_genesis
from training.core.recipe import Recipe, parse_recipe
from training.core.schedule import compute_num_rounds_total, plan_steps
from training.core.settle import Settlement, settle
from training.data.corpus import Corpus, load_corpus
from training.evaluation import evaluate_state
from training.local import LocalWorker
from training.recipes.shipped import load_shipped


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedRound:
    """What one round did."""

    round_index: int
    """t."""
    settlement: Settlement
    """The agreed state after it."""
    payload_bytes: int
    """Sent by one worker."""
    train_loss_micro: int
    """Mean over workers."""


def simulate(
    recipe: Recipe,
    corpus: Corpus,
    num_workers: int,
    on_round: Callable[[SimulatedRound], None] | None = None,
    *,
    num_rounds: int | None = None,
) -> tuple[CanonicalState, list[LocalWorker]]:
    """Run all rounds with the recipe's overlap d: in round t the workers stand on the state of round t-1-d."""
    genesis = create_genesis(recipe)
    members = [bytes([index + 1]) * 20 for index in range(num_workers)]
    workers = [LocalWorker(recipe, genesis, 0, member, corpus=corpus) for member in members]
    settled: list[Settlement] = []
    state = genesis
    total = compute_num_rounds_total(recipe.rounds) if num_rounds is None else num_rounds
    for round_index in range(total):
        payloads, losses = [], []
        for worker in workers:
            _catch_up(worker, settled, round_index - recipe.rounds.overlap)
            num_steps = plan_steps(recipe.rounds, round_index, recipe.rounds.local_steps)
            losses.append(worker.train(round_index, num_steps, participants=members).loss_micro)
            payloads.append(worker.send(round_index, rank=recipe.codec.rank))
        settlement = settle(
            recipe, state, round_index, payloads, rank=recipe.codec.rank, local_steps=recipe.rounds.local_steps
        )
        settled.append(settlement)
        state = settlement.state
        if on_round is not None:
            on_round(
                SimulatedRound(
                    round_index=round_index,
                    settlement=settlement,
                    payload_bytes=len(payloads[0]),
                    train_loss_micro=sum(losses) // len(losses),
                )
            )
    for worker in workers:
        _catch_up(worker, settled, total)
    return state, workers


def _catch_up(worker: LocalWorker, settled: Sequence[Settlement], version: int) -> None:
    """Apply settled rounds up to a version; in a simulation every update is counted."""
    while worker.version < min(version, len(settled)):
        worker.apply(settled[worker.version], worker.version, worker.version in worker.in_flight)


def main() -> None:
    """Simulate a shipped recipe or a recipe file and print a line a round."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("recipe", help="name of a shipped recipe, or a TOML file")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--data", type=Path, help="a text file instead of the recipe's source")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    path = Path(arguments.recipe)
    recipe = parse_recipe(path.read_text(encoding="utf-8") if path.is_file() else load_shipped(arguments.recipe))
    corpus = load_corpus(recipe.data, arguments.data)
    started = time.process_time()

    def show(done: SimulatedRound) -> None:
        nonlocal started
        spent = time.process_time() - started
        loss = evaluate_state(recipe, done.settlement.state, corpus)
        exponents = sorted(set(done.settlement.state.exponents.values()))
        print(
            f"round {done.round_index:3d}  held-out {loss:.4f}  train {done.train_loss_micro / 1e6:.4f}  "
            f"{done.payload_bytes} bytes  {spent / arguments.workers:.2f} s a worker  exponents {exponents}  "
            f"root {done.settlement.state.root().hex()[:16]}",
            flush=True,
        )
        started = time.process_time()

    simulate(recipe, corpus, arguments.workers, show)


if __name__ == "__main__":
    main()
