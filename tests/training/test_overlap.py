"""Where a worker goes on while its update is under way: default, DiLoCoX, eager, synchronous (SPEC, *Overlap*)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from training.core.canonical import CanonicalState, create_genesis, dequantise
from training.core.layout import build_layout
from training.core.payload import decode_payload, plan_payload
from training.core.recipe import CodecKind, InnerRecipe, OptimizerKind, Recipe, StartKind
from training.core.sampling import compute_data_seed, plan_samples
from training.core.schedule import plan_steps
from training.core.settle import Settlement, settle
from training.data.corpus import Corpus
from training.evaluation import gather_samples
from training.inner import InnerLoop
from training.local import LocalWorker
from training.models.gpt import Gpt, compute_loss
from training.muon import orthogonalise
from training.simulate import simulate

MEMBERS = (b"\x01" * 20, b"\x02" * 20)
RecipeMaker = Callable[..., Recipe]
PLAIN = {"momentum_start_q15": 0, "momentum_end_q15": 0, "rate_start_q15": 32768, "rate_end_q15": 32768}
KINDS = [
    pytest.param(StartKind.CONTINUE, 1, 0, id="synchronous"),
    pytest.param(StartKind.CONTINUE, 4, 1, id="fragments in turn"),
    pytest.param(StartKind.CONTINUE, 1, 1, id="whole model, never rewinds"),
    pytest.param(StartKind.REWIND, 1, 1, id="whole model one round late"),
    pytest.param(StartKind.REWIND, 3, 0, id="synchronous fragments, residual apart"),
    pytest.param(StartKind.EAGER, 1, 1, id="eager"),
]


def _with_start(recipe: Recipe, start: StartKind) -> Recipe:
    return replace(recipe, rounds=replace(recipe.rounds, start=start))


def _weights(worker: LocalWorker) -> dict[str, torch.Tensor]:
    return {name: worker._weights_in_units(name) for name in worker._inner.weights}


def _settle(recipe: Recipe, state: CanonicalState, round_index: int, payloads: list[bytes]) -> Settlement:
    return settle(recipe, state, round_index, payloads, rank=4, local_steps=recipe.rounds.local_steps)


@pytest.mark.parametrize("codec", [CodecKind.LOW_RANK_2BIT, CodecKind.SPARSE_2BIT])
@pytest.mark.parametrize(("start", "fragments", "overlap"), KINDS)
def test_sum_of_sent_plus_residual_is_sum_of_raw(
    make_recipe: RecipeMaker, corpus: Corpus, start: StartKind, fragments: int, overlap: int, codec: CodecKind
) -> None:
    """CASES 7, in every kind of overlap, also when one update is not counted."""
    recipe = _with_start(make_recipe(codec, fragments=fragments, overlap=overlap, num_rounds=6), start)
    workers = [LocalWorker(recipe, create_genesis(recipe), 0, member, corpus=corpus) for member in MEMBERS]
    state, settled = create_genesis(recipe), list[Settlement]()
    zeros = {name: torch.zeros(theta.shape, dtype=torch.int64) for name, theta in state.theta.items()}
    raw, sent = [dict(zeros) for _ in MEMBERS], [dict(zeros) for _ in MEMBERS]
    for round_index in range(6):
        payloads = []
        for index, worker in enumerate(workers):
            while worker.version < round_index - overlap:
                worker.apply(settled[worker.version], worker.version, (index, worker.version) != (1, 2))
            worker.train(round_index, plan_steps(recipe.rounds, round_index, 8), participants=MEMBERS)
            before = {name: worker._start(name) - units for name, units in _weights(worker).items()}
            payloads.append(worker.send(round_index, rank=4))
            plan = plan_payload(recipe, worker.canonical, round_index, rank=4)
            for name, contribution in decode_payload(payloads[-1], plan).items():
                raw[index][name] = raw[index][name] + before[name]
                if (index, round_index) != (1, 2):
                    sent[index][name] = sent[index][name] + contribution.units
                assert torch.equal(_weights(worker)[name], worker._start(name)), name
        settled.append(_settle(recipe, state, round_index, payloads[: 1 if round_index == 2 else 2]))
        state = settled[-1].state
    for index, worker in enumerate(workers):
        worker.return_unaccepted(2)
        for name in zeros:
            assert torch.equal(sent[index][name] + worker._residual[name], raw[index][name]), name
        assert any(residual.any() for residual in worker._residual.values())


@pytest.mark.parametrize(("start", "fragments", "overlap"), KINDS)
def test_a_share_of_what_an_exchange_leaves_is_forgotten_by_residual_and_weights_alike(
    make_recipe: RecipeMaker, corpus: Corpus, start: StartKind, fragments: int, overlap: int
) -> None:
    """sent + residual + forgotten = raw; weights stand on their start after each send; a flush forgets nothing."""
    recipe = _with_start(make_recipe(CodecKind.VECTOR, fragments=fragments, overlap=overlap, num_rounds=5), start)
    recipe = replace(recipe, codec=replace(recipe.codec, forget_bps=2_500))
    state = create_genesis(recipe)
    worker, settled = LocalWorker(recipe, state, 0, MEMBERS[0], corpus=corpus), list[Settlement]()
    num_forgotten = 0
    for round_index in range(5 + fragments):
        while worker.version < round_index - overlap:
            worker.apply(settled[worker.version], worker.version, True)
        worker.train(round_index, plan_steps(recipe.rounds, round_index, 8), participants=MEMBERS)
        plan = plan_payload(recipe, worker.canonical, round_index, rank=4)
        owed = {
            slot.name: worker._start(slot.name) - _weights(worker)[slot.name] + worker._residual[slot.name]
            for slot in plan.slots
        }
        payload = worker.send(round_index, rank=4)
        for name, contribution in decode_payload(payload, plan).items():
            left, kept = owed[name] - contribution.units, worker._residual[name]
            forgotten = left * (0 if round_index >= 5 else 1) * 2_500 // 10_000
            assert ((left - kept) - forgotten).abs().max() <= 1, name
            num_forgotten += int((left != kept).sum())
            assert torch.equal(_weights(worker)[name], worker._start(name)), name
        assert worker.send(round_index, rank=4) == payload
        settled.append(_settle(recipe, state, round_index, [payload]))
        state = settled[-1].state
    assert num_forgotten > 1_000


def test_rewind_begins_every_round_at_theta_of_the_round_before_last(make_recipe: RecipeMaker, corpus: Corpus) -> None:
    """DiLoCoX: x = theta, without what is under way and without the residual."""
    recipe = _with_start(make_recipe(CodecKind.LOW_RANK_2BIT, overlap=1, num_rounds=4), StartKind.REWIND)
    worker, state = LocalWorker(recipe, create_genesis(recipe), 0, MEMBERS[0], corpus=corpus), create_genesis(recipe)
    settled: list[Settlement] = []
    for round_index in range(4):
        while worker.version < round_index - 1:
            worker.apply(settled[worker.version], worker.version, True)
        expected = settled[round_index - 2].state if round_index >= 2 else create_genesis(recipe)
        for name, value in dequantise(expected).items():
            assert torch.equal(worker._inner.weights[name].detach(), value), name
        worker.train(round_index, 8)
        settled.append(_settle(recipe, state, round_index, [worker.send(round_index, rank=4)]))
        state = settled[-1].state


def test_eager_keeps_its_share_until_the_average_arrives(make_recipe: RecipeMaker, corpus: Corpus) -> None:
    recipe = _with_start(make_recipe(CodecKind.NONE, overlap=1, num_rounds=4, **PLAIN), StartKind.EAGER)
    workers = [LocalWorker(recipe, create_genesis(recipe), 0, member, corpus=corpus) for member in MEMBERS]
    genesis = create_genesis(recipe)
    payloads = []
    for worker in workers:
        worker.train(0, 8, participants=MEMBERS)
        payloads.append(worker.send(0, rank=4))
    own = decode_payload(payloads[0], plan_payload(recipe, genesis, 0, rank=4))
    for name, units in _weights(workers[0]).items():
        assert torch.equal(units, genesis.theta[name] - own[name].units.div(2, rounding_mode="floor")), name
    settlement = _settle(recipe, genesis, 0, payloads)
    workers[0].apply(settlement, 0, True)
    for name, units in _weights(workers[0]).items():
        assert torch.equal(units, settlement.state.theta[name].long()), name


@pytest.mark.parametrize("start", [StartKind.REWIND, StartKind.EAGER])
def test_resume_is_bit_equal_with_other_starts_and_muon(
    make_recipe: RecipeMaker, corpus: Corpus, tmp_path: Path, start: StartKind
) -> None:
    recipe = _with_start(make_recipe(CodecKind.LOW_RANK_2BIT, fragments=2, overlap=1, num_rounds=4), start)
    recipe = replace(recipe, inner=replace(recipe.inner, optimizer=OptimizerKind.MUON))

    def run(restart: bool) -> bytes:
        worker, state = (
            LocalWorker(recipe, create_genesis(recipe), 0, MEMBERS[0], corpus=corpus),
            create_genesis(recipe),
        )
        settled: list[Settlement] = []
        for round_index in range(4):
            while worker.version < round_index - 1:
                worker.apply(settled[worker.version], worker.version, True)
            worker.train(round_index, 4, participants=MEMBERS)
            settled.append(_settle(recipe, state, round_index, [worker.send(round_index, rank=4)]))
            state = settled[-1].state
            if restart:
                worker.save(tmp_path / "worker.state")
                worker = LocalWorker.load(tmp_path / "worker.state", recipe, MEMBERS[0], corpus=corpus)
        return worker.digest()

    assert run(True) == run(False)


def test_identity_codec_one_step_sgd_is_averaged_sgd(make_recipe: RecipeMaker, corpus: Corpus) -> None:
    """H = 1, SGD with rate 1, mu 0, eta 1, nothing compressed: theta moves by the mean of the gradients."""
    recipe = make_recipe(CodecKind.NONE, num_rounds=3, **PLAIN)
    recipe = replace(
        recipe,
        rounds=replace(recipe.rounds, local_steps=1),
        inner=InnerRecipe(
            batch_size=2,
            optimizer=OptimizerKind.SGD,
            learning_rate=1.0,
            final_rate_ratio=1.0,
            warmup_steps=0,
            clip_norm=1e9,
        ),
    )
    genesis = create_genesis(recipe)
    bits = genesis.fraction_bits
    theta = {name: value.long() for name, value in genesis.theta.items()}

    def compare(done: object) -> None:
        total = {name: torch.zeros_like(value) for name, value in theta.items()}
        for member in MEMBERS:
            model = Gpt(recipe.model)
            start = {name: (value.double() / 2 ** bits[name]).float() for name, value in theta.items()}
            model.load_state_dict(start)
            round_index = done.round_index  # type: ignore[attr-defined]
            plan = plan_samples(
                seed=recipe.seed,
                round_index=round_index,
                data_seed=compute_data_seed(recipe.seed, round_index),
                member=member,
                participants=MEMBERS,
                num_bytes=int(corpus.train.size),
                context=recipe.model.context,
            )
            compute_loss(model, gather_samples(corpus.train, list(plan.starts(0, 2)), recipe.model.context)).backward()
            torch.optim.SGD(model.parameters(), lr=1.0).step()
            for name, weight in model.named_parameters():
                moved = start[name].double() - weight.detach().double()
                total[name] += (moved * 2 ** bits[name]).round().long()
        for name in theta:
            theta[name] = theta[name] - ((2 * total[name] + 2) >> 2)
            # float32 is coarser than the grid for large weights: at most one rounding of it a step and worker.
            difference = (done.settlement.state.theta[name] - theta[name]).abs().max()  # type: ignore[attr-defined]
            assert int(difference) <= 64, name
            theta[name] = done.settlement.state.theta[name].long()  # type: ignore[attr-defined]

    state, _ = simulate(recipe, corpus, 2, compare, num_rounds=3)
    assert state.root() != genesis.root()


def test_muon_makes_a_matrix_orthogonal() -> None:
    generator = torch.Generator().manual_seed(0)
    for shape in ((24, 40), (40, 24), (8, 8)):
        values = torch.linalg.svdvals(orthogonalise(torch.randn((3, *shape), generator=generator)))
        assert 0.3 < float(values.min()) <= float(values.max()) < 1.4
    assert not orthogonalise(torch.zeros(1, 4, 6)).any()


def test_the_recipe_says_how_long_muon_remembers(make_recipe: RecipeMaker) -> None:
    """Two equal gradients g leave a running sum of (1 + momentum) g."""
    recipe = make_recipe(CodecKind.NONE)
    sums = {}
    for momentum in (0.0, 0.5):
        inner = replace(recipe.inner, optimizer=OptimizerKind.MUON, momentum=momentum)
        loop = InnerLoop(replace(recipe, inner=inner), torch.device("cpu"))
        loop.set_weights(dequantise(create_genesis(recipe)))
        name = "layers.0.down.weight"
        for _ in range(2):
            for weight in loop.weights.values():
                weight.grad = torch.ones_like(weight)
            loop.update(0.01)
        sums[momentum] = loop.moments()[f"exp_avg/{name}"]
    assert torch.equal(sums[0.0], torch.ones_like(sums[0.0]))
    assert torch.equal(sums[0.5], torch.full_like(sums[0.5], 1.5))


@pytest.mark.parametrize("start", list(StartKind))
def test_training_lowers_the_loss_with_muon_in_every_kind(
    make_recipe: RecipeMaker, corpus: Corpus, start: StartKind
) -> None:
    recipe = _with_start(make_recipe(CodecKind.LOW_RANK_2BIT, fragments=1, overlap=1, num_rounds=10, **PLAIN), start)
    recipe = replace(recipe, inner=replace(recipe.inner, optimizer=OptimizerKind.MUON))
    state, workers = simulate(recipe, corpus, 2)
    assert workers[0].evaluate(state) < workers[0].evaluate(create_genesis(recipe)) - 1.5
    assert len(build_layout(recipe).fragments) == 1
