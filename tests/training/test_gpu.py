"""On CUDA: the agreed roots are the CPU's, bit for bit, whatever the inner steps do (`make test-gpu`)."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from training.core.canonical import create_genesis
from training.core.errors import DeviceCountError
from training.core.recipe import ANY_TEXT, CodecKind, OptimizerKind, Recipe
from training.core.settle import settle
from training.data.corpus import Corpus
from training.group.accumulating import create_inner_loop
from training.group.pipeline import PipelineWorker
from training.group.shape import GroupConfig, plan_devices
from training.group.sharded import ShardedWorker
from training.inner import Precision
from training.local import LocalWorker
from training.memory import read_free_bytes
from training.recipes.writing import write_recipe
from training.worker.engine_rules import EngineRules

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read with the first product: for bit-equal sums

MEMBERS = (b"\x01" * 20, b"\x02" * 20)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device; none is visible here"),
]


@pytest.mark.parametrize("codec", list(CodecKind))
def test_roots_of_cuda_and_cpu_workers_agree(make_recipe, corpus: Corpus, codec: CodecKind) -> None:  # type: ignore[no-untyped-def]
    """A CUDA and a CPU worker in one run: both stand on one root each round, and settle each other's bytes alike."""
    recipe = make_recipe(codec, fragments=2, overlap=0, num_rounds=4)
    state = create_genesis(recipe)
    workers = [
        LocalWorker(recipe, state, 0, member, device, corpus=corpus)
        for member, device in zip(MEMBERS, ("cuda", "cpu"), strict=True)
    ]
    for round_index in range(6):
        for worker in workers:
            worker.train(round_index, 4, participants=MEMBERS)
        payloads = [worker.send(round_index, rank=4) for worker in workers]
        settled = settle(recipe, state, round_index, payloads, rank=4, local_steps=4)
        assert settled.refused == 0
        assert settle(recipe, state, round_index, payloads[::-1], rank=4, local_steps=4).state.root() == (
            settled.state.root()
        )
        state = settled.state
        for worker in workers:
            worker.apply(settled, round_index, True)
        assert {worker.canonical.root() for worker in workers} == {state.root()}


def test_state_saved_on_cuda_loads_on_the_cpu(make_recipe, corpus: Corpus, tmp_path) -> None:  # type: ignore[no-untyped-def]
    recipe = make_recipe(CodecKind.LOW_RANK_2BIT)
    worker = LocalWorker(recipe, create_genesis(recipe), 0, MEMBERS[0], "cuda", corpus=corpus)
    worker.train(0, 4)
    worker.send(0, rank=4)
    worker.save(tmp_path / "state")
    assert LocalWorker.load(tmp_path / "state", recipe, MEMBERS[0], "cpu", corpus=corpus).digest() == worker.digest()


@pytest.mark.parametrize("optimizer", [OptimizerKind.ADAMW, OptimizerKind.MUON])
def test_resume_is_bit_equal_with_deterministic_algorithms(  # type: ignore[no-untyped-def]
    make_recipe, corpus: Corpus, tmp_path: Path, optimizer: OptimizerKind
) -> None:
    """CASES 4 on a GPU, where attention's backward pass otherwise adds up in an order of its own."""
    base = make_recipe(CodecKind.LOW_RANK_2BIT)
    recipe = replace(base, inner=replace(base.inner, optimizer=optimizer))
    torch.use_deterministic_algorithms(True)
    try:
        whole, halves = (
            LocalWorker(recipe, create_genesis(recipe), 0, MEMBERS[0], "cuda", corpus=corpus) for _ in range(2)
        )
        whole.train(0, 8)
        halves.train(0, 3)
        halves.save(tmp_path / "state")
        again = LocalWorker.load(tmp_path / "state", recipe, MEMBERS[0], "cuda", corpus=corpus)
        again.train(0, 8)
        assert again.send(0, rank=4) == whole.send(0, rank=4)
        assert again.digest() == whole.digest()
    finally:
        torch.use_deterministic_algorithms(False)


def test_integer_products_are_exact_and_the_inner_loop_has_no_tf32(make_recipe, corpus: Corpus) -> None:  # type: ignore[no-untyped-def]
    """What is agreed is summed on the CPU; and nobody has switched on a mode that would lose bits of an inner fp32."""
    assert not torch.backends.cuda.matmul.allow_tf32
    recipe = make_recipe(CodecKind.LOW_RANK_2BIT)
    worker = LocalWorker(recipe, create_genesis(recipe), 0, MEMBERS[0], "cuda", corpus=corpus)
    assert {theta.device.type for theta in worker.canonical.theta.values()} == {"cpu"}
    assert worker.train(0, 2).steps == 2


def test_bf16_counts_as_fp32_does(make_recipe, corpus: Corpus) -> None:  # type: ignore[no-untyped-def]
    recipe = make_recipe(CodecKind.LOW_RANK_2BIT)
    losses = []
    for precision in Precision:
        worker = LocalWorker(recipe, create_genesis(recipe), 0, MEMBERS[0], "cuda", corpus=corpus, precision=precision)
        losses.append(worker.train(0, 8).loss_micro)
        payload = worker.send(0, rank=4)
        assert settle(recipe, create_genesis(recipe), 0, [payload], rank=4, local_steps=8).refused == 0
    assert losses[0] == pytest.approx(losses[1], rel=0.02)


def test_memory_of_the_device_is_read() -> None:
    free_bytes = read_free_bytes("cuda:0")
    assert 0 < free_bytes <= torch.cuda.get_device_properties(0).total_memory
    with pytest.raises(DeviceCountError):
        plan_devices("cuda", torch.cuda.device_count() + 1, torch.cuda.device_count())


def test_micro_batches_make_the_training_of_the_whole_batch(make_recipe, corpus: Corpus) -> None:  # type: ignore[no-untyped-def]
    base = make_recipe(CodecKind.LOW_RANK_2BIT)
    recipe = replace(base, inner=replace(base.inner, batch_size=4))
    losses = []
    for num_micro_batches in (0, 2):
        inner = create_inner_loop(recipe, torch.device("cuda"), Precision.FP32, num_micro_batches)
        worker = LocalWorker(recipe, create_genesis(recipe), 0, MEMBERS[0], "cuda", corpus=corpus, inner=inner)
        losses.append(worker.train(0, 4).loss_micro)
        assert settle(recipe, create_genesis(recipe), 0, [worker.send(0, rank=4)], rank=4, local_steps=8).refused == 0
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def run_on_devices(recipe: Recipe, text: Path, devices: tuple[str, ...]) -> list[LocalWorker]:
    """Run rounds of workers as `trainer join --device` makes them, one a device; all stand on one root each round."""
    state, workers = create_genesis(recipe), []
    for member, device in zip(MEMBERS, devices, strict=True):
        rules = EngineRules(write_recipe(recipe), member=member, device=device, data_file=text)
        workers.append(rules.create_engine(state, 0))
    for t in range(4):
        for worker in workers:
            worker.train(t, 4, participants=MEMBERS)
        settled = settle(recipe, state, t, [each.send(t, rank=4) for each in workers], rank=4, local_steps=8)
        assert settled.refused == 0
        state = settled.state
        for worker in workers:
            worker.apply(settled, t, True)
        assert {worker.canonical.root() for worker in workers} == {state.root()}
    return workers


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices; fewer are visible here")
def test_workers_on_devices_of_their_own_agree(make_recipe, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """Several GPUs as several workers: each trains on the one that it was given, and on no other."""
    base = make_recipe(CodecKind.LOW_RANK_2BIT, fragments=2)
    text = tmp_path / "a.txt"
    text.write_bytes(bytes(range(256)) * 1000)
    devices = ("cuda:0", "cuda:1")
    workers = run_on_devices(replace(base, data=replace(base.data, digest=ANY_TEXT)), text, devices)
    for worker, device in zip(workers, devices, strict=True):
        own = {str(weight.device) for weight in worker._inner.weights.values()}
        assert own == {device} == {str(moment.device) for moment in worker._inner.own_moments().values()}


@pytest.mark.parametrize("precision", list(Precision))
@pytest.mark.parametrize("shape", ["stages", "shards"])
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices; fewer are visible here")
def test_a_group_over_two_devices_agrees_with_a_cpu_worker(
    make_recipe,  # type: ignore[no-untyped-def]
    corpus: Corpus,
    tmp_path: Path,
    shape: str,
    precision: Precision,
) -> None:
    """Stages or shards over NCCL beside a CPU worker: the loss within tolerance, the roots bit for bit."""
    base = make_recipe(CodecKind.LOW_RANK_2BIT, fragments=2)
    recipe = replace(base, model=replace(base.model, num_layers=2), inner=replace(base.inner, batch_size=4))
    group = GroupConfig(**{f"num_{shape}": 2}, timeout_seconds=120.0, precision=precision)  # type: ignore[arg-type]
    state = create_genesis(recipe)
    kind = PipelineWorker if shape == "stages" else ShardedWorker
    worker = kind(recipe, state, 0, MEMBERS[0], "cuda", corpus=corpus, group=group)
    other = LocalWorker(recipe, state, 0, MEMBERS[1], "cpu", corpus=corpus)
    alone = LocalWorker(recipe, state, 0, MEMBERS[0], "cpu", corpus=corpus)
    try:
        assert worker.digest() == alone.digest()
        expected = alone.train(0, 4, participants=MEMBERS).loss_micro
        for t in range(4):
            loss = worker.train(t, 4, participants=MEMBERS).loss_micro
            assert t or loss == pytest.approx(expected, rel=0.02)
            other.train(t, 4, participants=MEMBERS)
            payloads = [each.send(t, rank=4) for each in (worker, other)]
            settled = settle(recipe, state, t, payloads, rank=4, local_steps=8)
            assert settled.refused == 0
            state = settled.state
            for each in (worker, other):
                each.apply(settled, t, True)
        assert worker.canonical.root() == other.canonical.root() == state.root()
        worker.save(tmp_path / "state")
        loaded = LocalWorker.load(tmp_path / "state", recipe, MEMBERS[0], "cpu", corpus=corpus)
        assert loaded.digest() == worker.digest()
    finally:
        worker.close()
