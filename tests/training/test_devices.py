"""What of CUDA can be seen without a GPU: every tensor of a worker is on the device that it is used on.

Under torch's fake tensors a worker on ``cuda`` goes through its operations without doing them; one that mixes two
devices fails as it would on a real one.  Backward passes need a driver: they, and all numbers, are `test_gpu.py`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from training.core.canonical import create_genesis
from training.core.recipe import OptimizerKind, Recipe
from training.data.corpus import Corpus
from training.evaluation import evaluate_state
from training.group.cutting import GptStage, compute_logit_loss
from training.group.shape import GroupConfig
from training.inner import InnerLoop, Precision
from training.local import LocalWorker
from training.memory import CAST_BYTES, plan_needs
from training.models.gpt import compute_loss
from training.models.registry import create_module
from training.worker.engine_rules import choose_device, choose_precision
from training.worker.errors import Fatal

CUDA = torch.device("cuda", 0)
MEMBER = b"\x01" * 20


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeTensorMode]:
    """Answer where code asks for a value, which a fake tensor has none of: all is finite, and nothing is bad."""
    monkeypatch.setattr(FakeTensor, "__bool__", lambda self: True)
    monkeypatch.setattr(FakeTensor, "__int__", lambda self: 0)
    monkeypatch.setattr(FakeTensor, "__float__", lambda self: 1.0)
    monkeypatch.setattr(nn.Module, "to", lambda self, _device: self)  # fake parameters cannot move: they are made there
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        yield mode


def make_inner(recipe: Recipe, precision: Precision = Precision.FP32) -> InnerLoop:
    with CUDA:
        module = create_module(recipe.model)
    return InnerLoop(recipe, CUDA, module, precision)


@pytest.mark.parametrize("precision", list(Precision))
def test_forward_passes_stay_on_the_device(
    fake: FakeTensorMode, make_recipe: Callable[..., Recipe], precision: Precision
) -> None:
    recipe = make_recipe()
    inner = make_inner(recipe, precision)
    samples_BT = torch.zeros(2, recipe.model.context + 1, dtype=torch.int64).to(CUDA)
    with CUDA:
        stage = GptStage(recipe.model, 0, 1)
    before = torch.is_autocast_enabled("cuda")
    torch.set_autocast_enabled("cuda", precision is Precision.BF16)  # the context manager asks the driver first
    try:
        assert compute_loss(inner.model, samples_BT).device == CUDA
        assert compute_logit_loss(stage(samples_BT[:, :-1]), samples_BT[:, 1:]).device == CUDA
    finally:
        torch.set_autocast_enabled("cuda", before)


@pytest.mark.parametrize("optimizer", list(OptimizerKind))
def test_updates_and_moments_stay_on_the_device_and_are_saved_off_it(
    fake: FakeTensorMode, make_recipe: Callable[..., Recipe], optimizer: OptimizerKind
) -> None:
    base = make_recipe()
    inner = make_inner(replace(base, inner=replace(base.inner, optimizer=optimizer)))
    for _ in range(2):
        for weight in inner.weights.values():
            weight.grad = torch.empty_like(weight)
        norm = torch.nn.utils.clip_grad_norm_(inner.weights.values(), inner.clip_norm)
        assert norm.device == CUDA
        inner.update(0.01)
        moments = inner.moments()
        assert {moment.device.type for moment in moments.values()} <= {"cpu"}
        inner.set_moments(moments)  # what the second update goes on from
    assert {weight.device for weight in inner.weights.values()} == {CUDA}


def test_weights_come_to_the_grid_and_back(
    fake: FakeTensorMode, make_recipe: Callable[..., Recipe], corpus: Corpus
) -> None:
    """The outer loop's integers are the host's, the weights the device's."""
    recipe = make_recipe()
    worker = LocalWorker(recipe, create_genesis(recipe), 0, MEMBER, CUDA, corpus=corpus, inner=make_inner(recipe))
    for name, weight in worker._inner.weights.items():
        units = worker._weights_in_units(name)
        assert (units.device.type, units.dtype) == ("cpu", torch.int64)
        worker._move_weight(name, units, units - worker._start(name))
        assert (weight.device, weight.dtype) == (CUDA, torch.float32)


def test_evaluation_takes_fewer_samples_where_there_are_many_tokens(
    make_recipe: Callable[..., Recipe], corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = make_recipe()
    state = create_genesis(recipe)
    expected = evaluate_state(recipe, state, corpus)
    monkeypatch.setattr("training.evaluation._BATCH_LOGITS", 3 * recipe.model.context * recipe.model.vocabulary + 1)
    assert evaluate_state(recipe, state, corpus) == pytest.approx(expected, abs=1e-5)


def test_a_weight_without_a_gradient_is_left_alone(make_recipe: Callable[..., Recipe]) -> None:
    """A library's model may have parameters that a pass does not use."""
    recipe = make_recipe()
    inner = InnerLoop(recipe, torch.device("cpu"))
    inner.set_weights({name: torch.ones(weight.shape) for name, weight in inner.weights.items()})
    unused, *others = sorted(inner.weights)
    for name in others:
        inner.weights[name].grad = torch.ones_like(inner.weights[name])
    inner.update(0.01)
    assert bool((inner.weights[unused] == 1).all())
    assert all(bool((inner.weights[name] < 1).all()) for name in others)


@pytest.mark.parametrize(
    "group", [GroupConfig(), GroupConfig(num_stages=2), GroupConfig(num_shards=2)], ids=["one", "stages", "shards"]
)
def test_memory_counts_the_copies_in_bf16(make_recipe: Callable[..., Recipe], group: GroupConfig) -> None:
    base = make_recipe()
    recipe = replace(base, model=replace(base.model, num_layers=2), inner=replace(base.inner, batch_size=2))
    devices = tuple(f"cuda:{index}" for index in range(group.num_processes))
    plain, cast = (plan_needs(recipe, replace(group, precision=each), devices) for each in Precision)
    more = [
        after.inner_bytes - before.inner_bytes for before, after in zip(plain.processes, cast.processes, strict=True)
    ]
    if group.num_shards > 1:
        assert more == [CAST_BYTES * plain.num_parameters] * group.num_shards, "each comes to hold the whole model's"
    else:
        assert sum(more) >= CAST_BYTES * plain.num_parameters


@pytest.mark.parametrize("wanted", ["mps", "meta", "cuda:x", "gpu"])
def test_invalid_device_names_those_that_can_be(wanted: str) -> None:
    with pytest.raises(Fatal, match="no device") as refusal:
        choose_device(wanted)
    assert "cuda:1" in refusal.value.next_step


def test_invalid_device_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert choose_device("cuda:1") == "cuda:1"
    with pytest.raises(Fatal, match="cuda:2: the last one is cuda:1"):
        choose_device("cuda:2")


@pytest.mark.parametrize(("capability", "expected"), [((7, 5), Precision.FP32), ((9, 0), Precision.BF16)])
def test_precision_is_that_of_the_chosen_device(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], expected: Precision
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", {CUDA: capability}.__getitem__)
    assert choose_precision("auto", "cuda:0") is expected
