"""A worker alone: the same model, text, optimizer and number of tokens as one worker of the run, no exchange.

Written with the engine's public parts: one fragment, no compression, outer step 1 without momentum, so the
agreed state after a round is the worker's own weights.  Runs in its own process and writes its progress as
JSON, whole or not at all.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from training.core.recipe import Q15_ONE, CodecKind, OuterRecipe, Recipe
from training.core.recipe_text import parse_recipe

MEMBER = b"solo".ljust(20, b"\0")
"""Whose samples: an address that nobody has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SoloProgress:
    """How far it is."""

    num_parameters: int
    """Of the model."""
    num_steps: int
    """Inner steps done."""
    num_steps_total: int
    """Inner steps to do."""
    num_tokens: int
    """Bytes predicted so far."""
    loss: float
    """Held-out, nats a byte."""
    seconds: float
    """Since the start."""
    is_done: bool
    """Whether this is the end."""


def make_solo_recipe(recipe: Recipe) -> Recipe:
    """Return the recipe of a run with one member and the same inner steps.

    F = 4, H = 80, 24 rounds are 480 inner steps: one fragment, H = 80, 6 rounds.
    """
    total = recipe.rounds.num_rounds * recipe.rounds.local_steps // recipe.rounds.num_fragments
    num_rounds = max(recipe.rounds.num_rounds // recipe.rounds.num_fragments, 1)
    while total % num_rounds:
        num_rounds -= 1
    return replace(
        recipe,
        codec=replace(recipe.codec, kind=CodecKind.NONE),
        rounds=replace(
            recipe.rounds, num_fragments=1, overlap=0, local_steps=total // num_rounds, num_rounds=num_rounds
        ),
        outer=OuterRecipe(momentum_start_q15=0, momentum_end_q15=0, rate_start_q15=Q15_ONE, rate_end_q15=Q15_ONE),
    )


def train_solo(recipe: Recipe, data: Path | None, tell: Callable[[SoloProgress], None]) -> None:
    """Train to the end and tell about each stretch."""
    from training.core.canonical import create_genesis
    from training.core.settle import settle
    from training.data.corpus import load_corpus
    from training.local import LocalWorker

    started = time.monotonic()
    solo = make_solo_recipe(recipe)
    corpus = load_corpus(solo.data, data)
    state = create_genesis(solo)
    num_parameters = count_parameters(state)
    worker = LocalWorker(solo, state, 0, MEMBER, corpus=corpus)
    total = solo.rounds.num_rounds * solo.rounds.local_steps
    num_steps = num_tokens = 0

    def report(*, is_done: bool) -> None:
        tell(
            SoloProgress(
                num_parameters=num_parameters,
                num_steps=num_steps,
                num_steps_total=total,
                num_tokens=num_tokens,
                loss=worker.evaluate(worker.canonical),
                seconds=time.monotonic() - started,
                is_done=is_done,
            )
        )

    report(is_done=False)
    for index in range(solo.rounds.num_rounds):
        done = worker.train(index, solo.rounds.local_steps, participants=(MEMBER,))
        num_steps += done.steps
        num_tokens += done.tokens
        payload = worker.send(index, rank=solo.codec.rank)
        settlement = settle(
            solo, worker.canonical, index, [payload], rank=solo.codec.rank, local_steps=solo.rounds.local_steps
        )
        worker.apply(settlement, index, True)
        report(is_done=index == solo.rounds.num_rounds - 1)


def count_parameters(state: Any) -> int:
    """Count the parameters of an agreed state."""
    return sum(int(tensor.numel()) for tensor in state.theta.values())


def save_progress(progress: SoloProgress, path: Path) -> None:
    """Write the progress whole or not at all."""
    partial = path.with_name(f"{path.name}.part")
    raw = {name: getattr(progress, name) for name in SoloProgress.__dataclass_fields__}
    partial.write_text(json.dumps(raw) + "\n", encoding="utf-8")
    os.replace(partial, path)


def load_progress(path: Path) -> SoloProgress | None:
    """Read the progress; None before the first."""
    try:
        return SoloProgress(**json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None


def main() -> None:
    """Train alone: `python -m localnet.demo.solo RECIPE --out FILE [--data FILE] [--threads N]`."""
    import torch

    parser = argparse.ArgumentParser(description="Train one worker alone, for comparison.")
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    recipe = parse_recipe(arguments.recipe.read_text(encoding="utf-8"))

    def tell(progress: SoloProgress) -> None:
        save_progress(progress, arguments.out)
        print(
            f"{progress.num_steps}/{progress.num_steps_total} steps, {progress.num_tokens:,} tokens, held-out loss "
            f"{progress.loss:.3f}, {progress.seconds:.0f} s",
            flush=True,
        )

    train_solo(recipe, arguments.data, tell)


if __name__ == "__main__":
    main()
