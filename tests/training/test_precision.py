"""Products in bf16: the same training but for rounding, float32 weights and exact sums (CASES 8, 15)."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from training.core.canonical import create_genesis
from training.core.recipe import CodecKind, Recipe
from training.core.settle import settle
from training.data.corpus import Corpus
from training.group.pipeline import PipelineWorker
from training.group.shape import GroupConfig
from training.group.sharded import ShardedWorker
from training.inner import Precision
from training.local import LocalWorker
from training.worker.engine_rules import choose_precision
from training.worker.errors import Fatal

MEMBER = b"\x01" * 20


@pytest.fixture(scope="module")
def recipe(make_recipe) -> Recipe:  # type: ignore[no-untyped-def]
    base = make_recipe(CodecKind.LOW_RANK_2BIT)
    return replace(
        base, model=replace(base.model, num_layers=2), inner=replace(base.inner, batch_size=4, warmup_steps=1)
    )


def create(recipe: Recipe, corpus: Corpus, precision: Precision) -> LocalWorker:
    return LocalWorker(recipe, create_genesis(recipe), 0, MEMBER, corpus=corpus, precision=precision)


def test_bf16_is_near_fp32_and_its_updates_count(recipe: Recipe, corpus: Corpus) -> None:
    losses = {}
    for precision in Precision:
        worker = create(recipe, corpus, precision)
        before = worker.digest()
        losses[precision] = worker.train(0, 8).loss_micro
        assert worker.digest() != before
        for name, weight in worker._inner.weights.items():
            assert weight.dtype == torch.float32
            assert bool(torch.isfinite(weight).all()), name
            assert bool((worker._weights_in_units(name) != worker.canonical.theta[name]).any()), f"{name} has moved"
        payload = worker.send(0, rank=4)
        assert settle(recipe, create_genesis(recipe), 0, [payload], rank=4, local_steps=8).refused == 0
    assert losses[Precision.BF16] != losses[Precision.FP32]
    assert losses[Precision.BF16] == pytest.approx(losses[Precision.FP32], rel=0.01)


@pytest.mark.integration
@pytest.mark.parametrize("kind", [PipelineWorker, ShardedWorker])
def test_a_group_trains_in_bf16(
    recipe: Recipe, corpus: Corpus, kind: type[PipelineWorker] | type[ShardedWorker]
) -> None:
    num = {"num_stages": 2} if kind is PipelineWorker else {"num_shards": 2}
    group = GroupConfig(**num, num_threads=1, timeout_seconds=60.0, precision=Precision.BF16)  # type: ignore[arg-type]
    expected = create(recipe, corpus, Precision.BF16).train(0, 4).loss_micro
    exact = create(recipe, corpus, Precision.FP32).train(0, 4).loss_micro
    worker = kind(recipe, create_genesis(recipe), 0, MEMBER, corpus=corpus, group=group)
    try:
        got = worker.train(0, 4).loss_micro
        assert got != exact
        assert got == pytest.approx(expected, rel=1e-3)
        payload = worker.send(0, rank=4)
        assert settle(recipe, create_genesis(recipe), 0, [payload], rank=4, local_steps=8).refused == 0
    finally:
        worker.close()


def test_precision_is_chosen_by_name() -> None:
    assert choose_precision("auto", "cpu") is Precision.FP32
    assert choose_precision("bf16", "cpu") is Precision.BF16
    with pytest.raises(Fatal, match=r"no precision 'fp8'"):
        choose_precision("fp8", "cpu")
