"""On CUDA: the agreed roots are the CPU's, bit for bit, whatever the inner steps do (`make test-gpu`)."""

from __future__ import annotations

import pytest
import torch

from training.core.canonical import create_genesis
from training.core.recipe import CodecKind
from training.core.settle import settle
from training.data.corpus import Corpus
from training.group.pipeline import PipelineWorker
from training.group.shape import GroupConfig
from training.local import LocalWorker

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


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices; fewer are visible here")
def test_pipeline_over_two_devices(make_recipe, corpus: Corpus) -> None:  # type: ignore[no-untyped-def]
    from dataclasses import replace

    base = make_recipe(CodecKind.LOW_RANK_2BIT)
    recipe = replace(base, model=replace(base.model, num_layers=2))
    group = GroupConfig(num_stages=2, timeout_seconds=60.0)
    worker = PipelineWorker(recipe, create_genesis(recipe), 0, MEMBERS[0], "cuda", corpus=corpus, group=group)
    try:
        assert worker.train(0, 4).steps == 4
        payload = worker.send(0, rank=4)
        assert settle(recipe, create_genesis(recipe), 0, [payload], rank=4, local_steps=4).refused == 0
    finally:
        worker.close()
