"""A tiny recipe and a text of its own, so that no test depends on the Python version's source."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from training.core.recipe import CodecKind, Recipe
from training.core.recipe_text import parse_recipe
from training.data.corpus import Corpus, split_blocks
from training.recipes.shipped import load_shipped

sys.path.insert(0, str(Path(__file__).parent))

MEMBERS = (b"\x01" * 20, b"\x02" * 20)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def corpus() -> Corpus:
    """About 300 kB of counting in words, which a model can learn."""
    words = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    lines = (" ".join(words[int(digit)] for digit in str(number * 7919)) for number in range(10_000))
    return split_blocks("\n".join(lines).encode(), 1_000)


@pytest.fixture(scope="session")
def make_recipe() -> Callable[..., Recipe]:
    """Return the tiny recipe with another codec, F, d or outer schedule."""

    def make(
        codec: CodecKind = CodecKind.NONE, *, fragments: int = 1, overlap: int = 0, num_rounds: int = 12, **outer: Any
    ) -> Recipe:
        base = parse_recipe(load_shipped("tiny"))
        return replace(
            base,
            codec=replace(base.codec, kind=codec),
            rounds=replace(base.rounds, num_fragments=fragments, overlap=overlap, num_rounds=num_rounds),
            outer=replace(base.outer, **outer),
        )

    return make
