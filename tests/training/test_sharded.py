"""A worker of several shards (FSDP) against one process: the same training, the same agreed roots (CASES 12, 17)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from training.core.canonical import create_genesis
from training.core.errors import DeviceCountError, ShardCountError
from training.core.recipe import CodecKind, OptimizerKind, Recipe
from training.core.settle import settle
from training.data.corpus import Corpus
from training.group.shape import GroupConfig, check_shape, plan_devices
from training.group.shard import cut_rows
from training.group.sharded import ShardedWorker
from training.local import LocalWorker

MEMBERS = (b"\x01" * 20, b"\x02" * 20)
GROUP = GroupConfig(num_shards=2, num_threads=1, timeout_seconds=60.0)

MASKED = -100
"""A target that torch's cross entropy leaves out."""


@pytest.fixture(scope="module")
def recipe(make_recipe) -> Recipe:  # type: ignore[no-untyped-def]
    base = make_recipe(CodecKind.LOW_RANK_2BIT, fragments=2, overlap=1, num_rounds=4)
    return replace(
        base,
        model=replace(base.model, num_layers=2, vocabulary=257),  # rows of the embedding: 129 and 128
        inner=replace(base.inner, batch_size=4, clip_norm=0.5),
        codec=replace(base.codec, forget_bps=2_000),
    )


@contextmanager
def open_sharded(recipe: Recipe, corpus: Corpus) -> Iterator[ShardedWorker]:
    worker = ShardedWorker(recipe, create_genesis(recipe), 0, MEMBERS[0], corpus=corpus, group=GROUP)
    try:
        yield worker
    finally:
        worker.close()


@given(num_rows=st.integers(1, 300), num_shards=st.integers(1, 9))
def test_rows_are_cut_as_torch_cuts_them(num_rows: int, num_shards: int) -> None:
    rows = torch.arange(num_rows)
    chunks = [chunk.tolist() for chunk in rows.chunk(num_shards)]
    cut = [rows[cut_rows(num_rows, index, num_shards)].tolist() for index in range(num_shards)]
    assert cut == chunks + [[]] * (num_shards - len(chunks))


def test_invalid_shapes(recipe: Recipe) -> None:
    with pytest.raises(ShardCountError, match=r"3 shards, expected a divisor of inner\.batch_size = 4"):
        check_shape(recipe, GroupConfig(num_shards=3))
    with pytest.raises(ShardCountError, match=r"one or the other"):
        check_shape(recipe, GroupConfig(num_shards=2, num_stages=2))
    with pytest.raises(DeviceCountError, match=r"2 processes from cuda:1 on, 2 CUDA devices"):
        plan_devices("cuda:1", 2, 2)
    assert plan_devices("cpu", 2, 0) == ("cpu", "cpu")


@pytest.mark.integration
@pytest.mark.parametrize("optimizer", [OptimizerKind.ADAMW, OptimizerKind.MUON])
def test_two_shards_train_as_one_process(recipe: Recipe, corpus: Corpus, optimizer: OptimizerKind) -> None:
    """Loss and weights within float tolerance; two members of different shape stand on one root each round."""
    recipe = replace(recipe, inner=replace(recipe.inner, optimizer=optimizer))
    alone = LocalWorker(recipe, create_genesis(recipe), 0, MEMBERS[0], corpus=corpus)
    other = LocalWorker(recipe, create_genesis(recipe), 0, MEMBERS[1], corpus=corpus)
    with open_sharded(recipe, corpus) as sharded:
        assert sharded.digest() == alone.digest(), "placed bit for bit"
        settled = []
        state = create_genesis(recipe)
        for t in range(4):
            for worker in (sharded, other):
                while worker.version < t - 1:
                    worker.apply(settled[worker.version], worker.version, True)
            if t == 0:  # from here on the two stand on different sums, and are only compared in what is agreed
                reports = [worker.train(0, 4, participants=MEMBERS) for worker in (sharded, alone)]
                assert reports[0].loss_micro == pytest.approx(reports[1].loss_micro, rel=1e-5)
                for name, weight in alone._inner.weights.items():
                    torch.testing.assert_close(sharded._inner.weights[name], weight.detach(), rtol=1e-4, atol=1e-5)
            else:
                sharded.train(t, 4, participants=MEMBERS)
            other.train(t, 4, participants=MEMBERS)
            payloads = [worker.send(t, rank=4) for worker in (sharded, other)]
            settled.append(settle(recipe, state, t, payloads, rank=4, local_steps=8))
            state = settled[-1].state
            assert settled[-1].refused == 0
        for worker in (sharded, other):
            while worker.version < 4:
                worker.apply(settled[worker.version], worker.version, True)
        assert sharded.canonical.root() == other.canonical.root() == state.root()
        assert sharded.evaluate(state) == other.evaluate(state)


@pytest.mark.integration
def test_resume_is_bit_equal_and_the_file_fits_any_shape(recipe: Recipe, corpus: Corpus, tmp_path: Path) -> None:
    """CASES 4 and 17: stopped in the middle of a round, it goes on with the next sample, as if nothing had been."""
    with open_sharded(recipe, corpus) as worker:
        worker.train(0, 4)
        worker.send(0, rank=4)
        worker.train(1, 2)
        worker.save(tmp_path / "state")
        digest = worker.digest()
        assert worker.train(1, 4).steps == 2
        whole = worker.digest()
        assert LocalWorker.load(tmp_path / "state", recipe, MEMBERS[0], corpus=corpus).digest() == digest
        # Restored in place: the shards are the same processes, everything else is as after a start.
        _, _, tensors, about = LocalWorker.read_saved(tmp_path / "state", recipe, MEMBERS[0])
        worker._restore(tensors, about)
        assert worker.digest() == digest
        assert worker.train(1, 4).steps == 2
        assert worker.digest() == whole


@pytest.mark.integration
def test_a_masked_batch_of_one_shard_is_skipped_by_all(recipe: Recipe, corpus: Corpus) -> None:
    """CASES 12: one shard's loss is a mean over nothing; nobody waits, and no weight or moment changes."""
    with open_sharded(recipe, corpus) as worker:
        worker.train(0, 2)
        before = worker.digest()
        good = torch.randint(0, 256, (2, 2))
        masked = torch.tensor([[1, MASKED], [2, MASKED]])
        began = time.monotonic()
        losses = worker._shards.processes.ask("step", [(good, 0.01), (masked, 0.01)])
        assert losses == [None, None]
        assert time.monotonic() - began < 10
        assert worker.digest() == before
        assert None not in worker._shards.processes.ask("step", [(good, 0.01), (good, 0.01)])
        assert worker.digest() != before
