"""CASES 17: a worker that ends at, just before or just after the end of a round trains on every sample exactly once."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from training.core.canonical import create_genesis
from training.core.recipe import CodecKind, Recipe
from training.core.settle import Settlement, settle
from training.data.corpus import Corpus
from training.local import LocalWorker

MEMBER = b"\x01" * 20
NUM_ROUNDS = 4
STEPS = 4
"""Inner steps of a round."""

Seen = list[tuple[float, bytes]]
"""Learning rate and samples of each inner step that the weights have in them."""


def run_with_end(recipe: Recipe, corpus: Corpus, path: Path, end: int, *, in_order: bool) -> tuple[Seen, bytes]:
    """Run rounds as a worker's process does, end once after ``end`` steps, and start again from what was saved.

    A process saves after each send, and when it is stopped in order.  Returns the steps that count and the digest.
    """
    seen: Seen = []
    kept: Seen = []
    worker = _record(LocalWorker(recipe, create_genesis(recipe), 0, MEMBER, corpus=corpus), seen)
    settled: list[Settlement] = []
    ends, t = {end}, 0
    while t < NUM_ROUNDS:
        while worker.version < t - recipe.rounds.overlap:
            worker.apply(settled[worker.version], worker.version, True)
        worker.train(t, STEPS, lambda: len(seen) in ends)
        if len(seen) in ends:
            ends.clear()
            if in_order:
                worker.save(path)
                kept = list(seen)
            worker = _record(LocalWorker.load(path, recipe, MEMBER, corpus=corpus), seen)
            seen[:] = kept
            t = worker.in_flight[-1] + 1  # what the journal says
            continue
        payload = worker.send(t, rank=4)
        worker.save(path)
        kept = list(seen)
        state = settled[t - 1].state if t else create_genesis(recipe)
        settled.append(settle(recipe, state, t, [payload], rank=4, local_steps=recipe.rounds.local_steps))
        t += 1
    return seen, worker.digest()


def _record(worker: LocalWorker, seen: Seen) -> LocalWorker:
    step = worker._inner.step

    def recorded(samples_BT: torch.Tensor, rate: float) -> float | None:
        seen.append((rate, samples_BT.numpy().tobytes()))
        return step(samples_BT, rate)

    worker._inner.step = recorded  # type: ignore[method-assign]
    return worker


@pytest.mark.parametrize("in_order", [False, True], ids=["killed", "stopped"])
@pytest.mark.parametrize("offset", [-1, 0, 1])
def test_every_sample_once(make_recipe, corpus: Corpus, tmp_path: Path, offset: int, in_order: bool) -> None:  # type: ignore[no-untyped-def]
    recipe = make_recipe(CodecKind.LOW_RANK_INT4, fragments=2, overlap=1, num_rounds=NUM_ROUNDS)
    whole, digest = run_with_end(recipe, corpus, tmp_path / "whole", -1, in_order=False)
    got, digest_after = run_with_end(recipe, corpus, tmp_path / "ended", 2 * STEPS + offset, in_order=in_order)
    assert got == whole
    assert digest_after == digest
    samples = [each for _, each in whole]
    assert len(set(samples)) == len(samples) == NUM_ROUNDS * STEPS, "no sample twice"
