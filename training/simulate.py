"""Run a recipe's rounds in one process, without chain or store: for research, tuning and tests.

From a notebook::

    from training.simulate import load_recipe, simulate
    from training.data.corpus import load_corpus
    recipe = load_recipe("demo")
    state, workers = simulate(recipe, load_corpus(recipe.data), 4, lambda done: print(done.round_index, done.traffic))
    print(workers[0].evaluate(state))

The members take turns, so it also tells how much compute each needs.  The code of a round is the workers' own; the
bytes counted are exact for payloads, and the store's redundancy is that of a committee of the given size.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from chain.core.rounds.params import MAX_PARTICIPANTS
from chain.core.rounds.settling import compute_median_step
from da.core.blob import compute_shard_bytes
from da.core.scheme import compute_scheme
from training.attack_kind import AttackKind
from training.attacks import craft_payload
from training.core.canonical import CanonicalState, create_genesis
from training.core.payload import plan_payload
from training.core.recipe import Recipe
from training.core.recipe_text import parse_recipe
from training.core.schedule import compute_num_rounds_total, is_flush_round, plan_steps
from training.core.settle import Settlement, settle
from training.data.corpus import Corpus, check_size, is_agreed_text, load_corpus
from training.evaluation import evaluate_state
from training.group.accumulating import create_inner_loop
from training.group.shape import GroupConfig, check_shape
from training.inner import Precision
from training.local import LocalWorker
from training.recipes.reading import find_recipe_text

DEFAULT_SEATS = 4
"""Storage nodes of a devnet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What one worker's exchange moves, in bytes; the chain's own is not in it."""

    payload_bytes: int
    """Made by one worker."""
    up_bytes: int
    """Shards dispersed by one worker, padding included: payload * n/k, rounded up to whole shards."""
    down_bytes: int
    """Payloads of the others, from any k shards each."""

    def __add__(self, other: Traffic) -> Traffic:
        """Return the sum of two rounds."""
        return Traffic(
            payload_bytes=self.payload_bytes + other.payload_bytes,
            up_bytes=self.up_bytes + other.up_bytes,
            down_bytes=self.down_bytes + other.down_bytes,
        )


NO_TRAFFIC = Traffic(payload_bytes=0, up_bytes=0, down_bytes=0)
"""Before the first round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedRound:
    """What one round did."""

    round_index: int
    """t."""
    settlement: Settlement
    """The agreed state after it."""
    payload_bytes: int
    """Sent by one worker."""
    train_loss_micro: int | None
    """Mean over workers; None in a flush round, which has no inner steps."""
    traffic: Traffic
    """Of one worker in this round."""
    rank: int
    """r of the round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedStep:
    """An inner step that was done."""

    round_index: int
    worker_index: int
    step: int
    """Of this worker in this round, from 1."""
    num_steps: int
    """It will have done in this round."""


def load_recipe(name: str) -> Recipe:
    """Return a shipped recipe, or the one in a TOML file."""
    return parse_recipe(find_recipe_text(name))


def make_members(num_workers: int) -> list[bytes]:
    """Return the addresses of simulated members; raises ValueError for more, or fewer, than a round has."""
    if not 1 <= num_workers <= MAX_PARTICIPANTS:
        raise ValueError(f"{num_workers} workers, expected 1..{MAX_PARTICIPANTS}; next: give such a number of workers")
    numbers = range(1, num_workers + 1)
    return [number.to_bytes(1, "big") * 20 if number < 256 else number.to_bytes(2, "big") * 10 for number in numbers]


def compute_traffic(payload_bytes: int, num_workers: int, num_seats: int = DEFAULT_SEATS) -> Traffic:
    """Return what an exchange of payloads of this size moves for one worker."""
    scheme = compute_scheme(num_seats)
    return Traffic(
        payload_bytes=payload_bytes,
        up_bytes=compute_shard_bytes(payload_bytes, scheme.num_data) * scheme.num_shards,
        down_bytes=(num_workers - 1) * payload_bytes,
    )


def simulate(
    recipe: Recipe,
    corpus: Corpus,
    num_workers: int,
    on_round: Callable[[SimulatedRound], None] | None = None,
    *,
    num_rounds: int | None = None,
    attack: AttackKind | None = None,
    num_attackers: int = 1,
    num_seats: int = DEFAULT_SEATS,
    num_micro_batches: int = 0,
    on_step: Callable[[SimulatedStep], None] | None = None,
) -> tuple[CanonicalState, list[LocalWorker]]:
    """Run all rounds with the recipe's overlap d: in round t the workers stand on the state of round t-1-d.

    With ``attack`` the last ``num_attackers`` members lie.  The rank follows the members' proposals by the chain's
    rule, where the recipe lets it move.  Raises `RecipeValueError` for micro-batches that don't divide the batch, and
    `TextDigestError` for another text than the recipe names.
    """
    is_agreed_text(recipe.data, corpus)
    check_shape(recipe, GroupConfig(num_micro_batches=num_micro_batches))
    genesis = create_genesis(recipe)
    members = make_members(num_workers)
    cpu = torch.device("cpu")
    workers = [
        LocalWorker(
            recipe,
            genesis,
            0,
            member,
            corpus=corpus,
            inner=create_inner_loop(recipe, cpu, Precision.FP32, num_micro_batches),
        )
        for member in members
    ]
    settled: list[Settlement] = []
    ranks: list[int] = []
    state, rank = genesis, recipe.codec.rank
    total = compute_num_rounds_total(recipe.rounds) if num_rounds is None else num_rounds
    for round_index in range(total):
        payloads, losses = [], []
        for index, worker in enumerate(workers):
            _catch_up(worker, settled, round_index - recipe.rounds.overlap)
            num_steps = plan_steps(recipe.rounds, round_index, recipe.rounds.local_steps)
            hear = None if on_step is None else _count_steps(on_step, round_index, index, num_steps)
            losses.append(worker.train(round_index, num_steps, participants=members, on_step=hear).loss_micro)
            payloads.append(worker.send(round_index, rank=rank))
        if attack is not None:
            plan = plan_payload(recipe, workers[0].canonical, round_index, rank=rank)
            honest = payloads[: num_workers - num_attackers]
            payloads = honest + [craft_payload(attack, plan, honest, own) for own in payloads[len(honest) :]]
        settlement = settle(recipe, state, round_index, payloads, rank=rank, local_steps=recipe.rounds.local_steps)
        settled.append(settlement)
        ranks.append(rank)
        state = settlement.state
        if on_round is not None:
            on_round(
                SimulatedRound(
                    round_index=round_index,
                    settlement=settlement,
                    payload_bytes=len(payloads[0]),
                    train_loss_micro=None if is_flush_round(recipe.rounds, round_index) else sum(losses) // len(losses),
                    traffic=compute_traffic(len(payloads[0]), num_workers, num_seats),
                    rank=rank,
                )
            )
        rank = compute_median_step(rank, [proposed for proposed in _propose_ranks(workers, rank) if proposed])
    for worker in workers:
        _catch_up(worker, settled, total)
    return state, workers


def _count_steps(
    on_step: Callable[[SimulatedStep], None], round_index: int, worker_index: int, num_steps: int
) -> Callable[[int, float], None]:
    """Return what tells of a worker's steps in a round as they are done."""
    counted = itertools.count(1)
    return lambda _step, _rate: on_step(
        SimulatedStep(round_index=round_index, worker_index=worker_index, step=next(counted), num_steps=num_steps)
    )


def _propose_ranks(workers: Sequence[LocalWorker], rank: int) -> list[int]:
    return [worker.propose(None, rank=rank).rank for worker in workers]


def _catch_up(worker: LocalWorker, settled: Sequence[Settlement], version: int) -> None:
    """Apply settled rounds up to a version; in a simulation every update is counted."""
    while worker.version < min(version, len(settled)):
        worker.apply(settled[worker.version], worker.version, worker.version in worker.in_flight)


def main() -> None:
    """Simulate a shipped recipe or a recipe file and print a line a round."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("recipe", help="name of a shipped recipe, or a TOML file")
    parser.add_argument(
        "--workers", type=int, choices=range(1, MAX_PARTICIPANTS + 1), metavar=f"1..{MAX_PARTICIPANTS}", default=2
    )
    parser.add_argument("--data", type=Path, help="a text file instead of the recipe's source")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    recipe = load_recipe(arguments.recipe)
    corpus = load_corpus(recipe.data, arguments.data, vocabulary=recipe.model.vocabulary)
    check_size(corpus, recipe.model.context)
    started = time.process_time()

    def show(done: SimulatedRound) -> None:
        nonlocal started
        spent = time.process_time() - started
        loss = evaluate_state(recipe, done.settlement.state, corpus)
        exponents = sorted(set(done.settlement.state.exponents.values()))
        train = "flush" if done.train_loss_micro is None else f"train {done.train_loss_micro / 1e6:.4f}"
        print(
            f"round {done.round_index:3d}  held-out {loss:.4f}  {train:12}  "
            f"{done.payload_bytes} bytes  {spent / arguments.workers:.2f} s a worker  exponents {exponents}  "
            f"root {done.settlement.state.root().hex()[:16]}",
            flush=True,
        )
        started = time.process_time()

    simulate(recipe, corpus, arguments.workers, show)


if __name__ == "__main__":
    main()
