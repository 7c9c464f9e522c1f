"""The worker's invariant: weights = theta minus everything of mine that isn't in theta yet (DESIGN 7)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from training.core.canonical import CanonicalState, create_genesis
from training.core.errors import (
    NonFiniteUpdateError,
    RootMismatchError,
    UnknownUpdateError,
    VersionMismatchError,
    WorkerStateForeignError,
)
from training.core.layout import build_layout
from training.core.payload import decode_payload, plan_payload
from training.core.recipe import CodecKind, Recipe
from training.core.sampling import compute_data_seed, plan_samples
from training.core.schedule import (
    compute_num_rounds_total,
    first_step_of_round,
    learning_rate,
    outer_coefficients,
    plan_steps,
)
from training.core.settle import Settlement, settle, settle_void
from training.data.corpus import Corpus
from training.evaluation import gather_samples
from training.local import LocalWorker
from training.models.gpt import Gpt, compute_loss
from training.simulate import simulate

MEMBERS = (b"\x01" * 20, b"\x02" * 20)
RecipeMaker = Callable[..., Recipe]
PLAIN = {"momentum_start_q15": 0, "momentum_end_q15": 0, "rate_start_q15": 32768, "rate_end_q15": 32768}
"""eta 1, mu 0: the agreed theta of one worker is then that worker's own."""


def _worker(recipe: Recipe, corpus: Corpus, member: bytes = MEMBERS[0]) -> LocalWorker:
    return LocalWorker(recipe, create_genesis(recipe), 0, member, corpus=corpus)


def _train(worker: LocalWorker, recipe: Recipe, round_index: int, participants: Sequence[bytes] = MEMBERS) -> None:
    worker.train(
        round_index, plan_steps(recipe.rounds, round_index, recipe.rounds.local_steps), participants=participants
    )


def _settle(recipe: Recipe, state: CanonicalState, round_index: int, payloads: Sequence[bytes]) -> Settlement:
    return settle(recipe, state, round_index, payloads, rank=4, local_steps=recipe.rounds.local_steps)


def _units(worker: LocalWorker) -> dict[str, torch.Tensor]:
    return {name: worker._weights_in_units(name) for name in worker._inner.weights}


def _check_invariant(worker: LocalWorker, progress: dict[str, torch.Tensor] | None = None) -> None:
    """Weights = theta - residual - in flight + progress, in integers (progress: none just after a send)."""
    for name, units in _units(worker).items():
        start = worker.canonical.theta[name].long() - worker._residual[name]
        for update in worker._in_flight.values():
            start = start - update.units.get(name, torch.zeros((), dtype=torch.int64))
        expected = start + (progress[name] if progress else 0)
        assert torch.equal(units, expected), name


class _Diloco:
    """Two-worker synchronous DiLoCo in one process, in the same integers: the oracle (CASES 14)."""

    def __init__(self, recipe: Recipe, corpus: Corpus) -> None:
        self.recipe, self.corpus = recipe, corpus
        genesis, self.bits = create_genesis(recipe), create_genesis(recipe).fraction_bits
        self.theta = {name: theta.long() for name, theta in genesis.theta.items()}
        self.momentum = {name: torch.zeros_like(theta) for name, theta in self.theta.items()}
        self.models = [Gpt(recipe.model) for _ in MEMBERS]
        for model in self.models:
            model.load_state_dict({n: (t.double() / 2 ** self.bits[n]).float() for n, t in self.theta.items()})
        self.starts = [self.rounded(model) for model in self.models]
        inner = recipe.inner
        self.optimizers = [
            torch.optim.AdamW(
                [
                    {"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": inner.weight_decay},
                    {"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0.0},
                ],
                betas=(inner.beta1, inner.beta2),
                fused=True,
            )
            for model in self.models
        ]

    def rounded(self, model: Gpt) -> dict[str, torch.Tensor]:
        return {n: (p.detach().double() * 2 ** self.bits[n]).round().long() for n, p in model.named_parameters()}

    def inner_steps(self, round_index: int, model: Gpt, optimizer: torch.optim.AdamW, member: bytes) -> None:
        recipe, batch, context = self.recipe, self.recipe.inner.batch_size, self.recipe.model.context
        plan = plan_samples(
            seed=recipe.seed,
            round_index=round_index,
            data_seed=compute_data_seed(recipe.seed, round_index),
            member=member,
            participants=MEMBERS,
            num_bytes=int(self.corpus.train.size),
            context=context,
        )
        first = first_step_of_round(recipe.rounds, round_index)
        for step in range(plan_steps(recipe.rounds, round_index, recipe.rounds.local_steps)):
            optimizer.zero_grad()
            samples = gather_samples(self.corpus.train, list(plan.starts(step * batch, batch)), context)
            compute_loss(model, samples).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.inner.clip_norm)
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(recipe.inner, recipe.rounds, first + step)
            optimizer.step()

    def round(self, round_index: int) -> None:
        for model, optimizer, member in zip(self.models, self.optimizers, MEMBERS, strict=True):
            self.inner_steps(round_index, model, optimizer, member)
        outer = outer_coefficients(self.recipe, round_index)
        fragments = build_layout(self.recipe).fragments
        for name in fragments[round_index % len(fragments)]:
            total = sum(start[name] - self.rounded(m)[name] for start, m in zip(self.starts, self.models, strict=True))
            mean = torch.div(2 * total + 2, 4, rounding_mode="floor")
            old = self.momentum[name] * outer.momentum_q15
            self.momentum[name] = torch.sign(old) * (old.abs() >> 15) + mean
            new = self.momentum[name] * outer.momentum_q15
            step = (mean + torch.sign(new) * (new.abs() >> 15)) * outer.rate_q15
            self.theta[name] = self.theta[name] - ((step + 2**14) >> 15)
            for model, start in zip(self.models, self.starts, strict=True):
                with torch.no_grad():
                    dict(model.named_parameters())[name].copy_(self.theta[name].double() / 2 ** self.bits[name])
                start[name] = self.rounded(model)[name]


@pytest.mark.parametrize("fragments", [1, 3])
def test_two_workers_equal_one_process_diloco_bit_for_bit(
    make_recipe: RecipeMaker, corpus: Corpus, fragments: int
) -> None:
    recipe = make_recipe(CodecKind.NONE, fragments=fragments, num_rounds=8)
    oracle = _Diloco(recipe, corpus)

    def compare(done: object) -> None:
        oracle.round(done.round_index)  # type: ignore[attr-defined]
        state = done.settlement.state  # type: ignore[attr-defined]
        for name, theta in oracle.theta.items():
            assert torch.equal(state.theta[name].long(), theta), name
            assert torch.equal(state.momentum[name].long(), oracle.momentum[name]), name

    simulate(recipe, corpus, 2, compare, num_rounds=5)


@pytest.mark.parametrize("codec", [CodecKind.NONE, CodecKind.LOW_RANK_INT4])
@pytest.mark.parametrize(("fragments", "overlap"), [(1, 0), (1, 1), (4, 0), (4, 1)])
def test_invariant_holds_through_a_run(
    make_recipe: RecipeMaker, corpus: Corpus, codec: CodecKind, fragments: int, overlap: int
) -> None:
    recipe = make_recipe(codec, fragments=fragments, overlap=overlap, num_rounds=5)
    workers = [_worker(recipe, corpus, member) for member in MEMBERS]
    settled: list[Settlement] = []
    state = create_genesis(recipe)
    for round_index in range(compute_num_rounds_total(recipe.rounds)):
        payloads = []
        for worker in workers:
            while worker.version < round_index - overlap:
                worker.apply(settled[worker.version], worker.version, worker.version in worker.in_flight)
            _train(worker, recipe, round_index)
            payloads.append(worker.send(round_index, rank=4))
            fragment = set(build_layout(recipe).fragments[round_index % fragments])
            assert all(int((_units(worker)[n] - worker._start(n)).abs().max()) == 0 for n in fragment)
        settled.append(_settle(recipe, state, round_index, payloads))
        state = settled[-1].state
    assert state.root() != create_genesis(recipe).root()


@pytest.mark.parametrize("fragments", [1, 3])
def test_flush_leaves_every_worker_on_the_agreed_theta(
    make_recipe: RecipeMaker, corpus: Corpus, fragments: int
) -> None:
    recipe = make_recipe(CodecKind.NONE, fragments=fragments, overlap=1, num_rounds=5)
    state, workers = simulate(recipe, corpus, 2)
    for worker in workers:
        assert worker.in_flight == ()
        assert worker.canonical.root() == state.root()
        assert all(torch.equal(units, state.theta[name].long()) for name, units in _units(worker).items())
        assert not any(residual.any() for residual in worker._residual.values())


def test_flush_equals_no_delay(make_recipe: RecipeMaker, corpus: Corpus) -> None:
    """One worker, eta 1, mu 0, nothing compressed: any F and d end with the bits of plain training."""
    roots = {}
    for fragments, overlap in ((1, 0), (1, 1), (4, 0), (4, 1)):
        recipe = make_recipe(CodecKind.NONE, fragments=fragments, overlap=overlap, num_rounds=8 * fragments, **PLAIN)
        recipe = replace(recipe, rounds=replace(recipe.rounds, local_steps=4))
        state, _ = simulate(recipe, corpus, 1)
        plain = _worker(recipe, corpus)
        for round_index in range(recipe.rounds.num_rounds):
            _train(plain, recipe, round_index, MEMBERS[:1])
        assert all(torch.equal(units, state.theta[name].long()) for name, units in _units(plain).items())
        roots[fragments, overlap] = state.root()
    assert roots[1, 0] == roots[1, 1]
    assert roots[4, 0] == roots[4, 1]


@pytest.mark.parametrize("restart", [False, True])
def test_sum_of_sent_plus_residual_is_sum_of_raw(
    make_recipe: RecipeMaker, corpus: Corpus, tmp_path: Path, restart: bool
) -> None:
    """CASES 7: nothing learned is lost by compression, nor by a restart."""
    recipe = make_recipe(CodecKind.LOW_RANK_INT4, fragments=3, overlap=0, num_rounds=9, **PLAIN)
    worker, plain, state = _worker(recipe, corpus), _worker(recipe, corpus), create_genesis(recipe)
    sent = {name: torch.zeros(theta.shape, dtype=torch.int64) for name, theta in state.theta.items()}
    for round_index in range(9):
        _train(worker, recipe, round_index, MEMBERS[:1])
        _train(plain, recipe, round_index, MEMBERS[:1])
        plan = plan_payload(recipe, worker.canonical, round_index, rank=4)
        payload = worker.send(round_index, rank=4)
        for name, contribution in decode_payload(payload, plan).items():
            sent[name] = sent[name] + contribution.units
        if restart and round_index % 2:
            before = worker.digest()
            worker.save(tmp_path / "worker.state")
            worker = LocalWorker.load(tmp_path / "worker.state", recipe, MEMBERS[0], corpus=corpus)
            assert worker.digest() == before
        settlement = _settle(recipe, state, round_index, [payload])
        state = settlement.state
        worker.apply(settlement, round_index, True)
    raw = {name: create_genesis(recipe).theta[name].long() - units for name, units in _units(plain).items()}
    flushed = {name for index in range(9) for name in build_layout(recipe).fragments[index % 3]}
    assert flushed == set(raw)
    assert any(residual.any() for residual in worker._residual.values())
    for name, total in raw.items():
        owed = worker._start(name) - _units(worker)[name]
        assert torch.equal(sent[name] + worker._residual[name] + owed, total), name


def test_resume_is_bit_equal(make_recipe: RecipeMaker, corpus: Corpus, tmp_path: Path) -> None:
    """CASES 4: one run, one restart, three restarts in the middle of rounds: the same bits."""

    def run(restarts: set[tuple[int, str]]) -> tuple[bytes, bytes]:
        recipe = make_recipe(CodecKind.LOW_RANK_INT4, fragments=2, overlap=1, num_rounds=8)
        worker, state = _worker(recipe, corpus), create_genesis(recipe)
        pending: list[Settlement] = []
        path = tmp_path / "worker.state"
        for round_index in range(8):
            while worker.version < round_index - 1:
                worker.apply(pending[worker.version], worker.version, True)
            for point in ("begin", "middle", "trained", "sent"):
                if point == "middle":
                    worker.train(round_index, 2)
                elif point == "trained":
                    worker.train(round_index, 4)
                elif point == "sent":
                    payload = worker.send(round_index, rank=4)
                if (round_index, point) in restarts:
                    worker.save(path)
                    worker = LocalWorker.load(path, recipe, MEMBERS[0], corpus=corpus)
            assert worker.send(round_index, rank=4) == payload
            pending.append(_settle(recipe, state, round_index, [payload]))
            state = pending[-1].state
        return state.root(), worker.digest()

    whole = run(set())
    assert run({(4, "begin")}) == whole
    assert run({(1, "middle"), (2, "trained"), (3, "sent"), (6, "middle")}) == whole


def test_skipped_rounds_keep_step_rate_and_momentum(make_recipe: RecipeMaker, corpus: Corpus) -> None:
    """CASES 6: three void rounds move nothing that is agreed, and the next rate is the one of its round."""
    recipe = make_recipe(CodecKind.NONE, fragments=2, overlap=0, num_rounds=8)
    worker, state = _worker(recipe, corpus), create_genesis(recipe)
    rates: dict[int, float] = {}
    for round_index in range(6):
        worker.train(round_index, 4, on_step=rates.__setitem__)
        payload = worker.send(round_index, rank=4)
        if round_index in (1, 2, 3):
            settlement = settle_void(state)
        else:
            settlement = _settle(recipe, state, round_index, [payload])
            assert settlement.state.step == first_step_of_round(recipe.rounds, round_index + 1)
        root, momentum = state.root(), state.momentum
        worker.apply(settlement, round_index, round_index not in (1, 2, 3))
        if round_index in (1, 2, 3):
            assert settlement.state.root() == root
            assert settlement.state.momentum is momentum
            assert worker.in_flight == ()
        assert worker.version == round_index + 1
        state = settlement.state
    assert list(rates) == list(range(24))
    assert list(rates.values()) == [learning_rate(recipe.inner, recipe.rounds, step) for step in range(24)]


def test_update_that_was_not_counted_is_sent_again(make_recipe: RecipeMaker, corpus: Corpus) -> None:
    recipe = make_recipe(CodecKind.NONE, overlap=0)
    worker, genesis = _worker(recipe, corpus), create_genesis(recipe)
    _train(worker, recipe, 0)
    first = decode_payload(worker.send(0, rank=4), plan_payload(recipe, genesis, 0, rank=4))
    worker.apply(settle_void(genesis), 0, False)
    again = decode_payload(worker.send(1, rank=4), plan_payload(recipe, genesis, 1, rank=4))
    assert all(torch.equal(again[name].units, each.units) for name, each in first.items())
    assert any(each.units.any() for each in first.values())


def test_worker_that_was_away_keeps_its_progress(make_recipe: RecipeMaker, corpus: Corpus) -> None:
    """Others' rounds move theta; what this worker learned meanwhile stays on top and is sent later."""
    recipe = make_recipe(CodecKind.NONE, fragments=2, overlap=1)
    away, other, state = _worker(recipe, corpus), _worker(recipe, corpus, MEMBERS[1]), create_genesis(recipe)
    _train(away, recipe, 0)
    progress = {name: units - away._start(name) for name, units in _units(away).items()}
    for round_index in range(4):
        _train(other, recipe, round_index)
        settlement = _settle(recipe, state, round_index, [other.send(round_index, rank=4)])
        other.apply(settlement, round_index, True)
        away.apply(settlement, round_index, None)
        state = settlement.state
    assert away.canonical.root() == other.canonical.root() == state.root()
    _check_invariant(away, progress)
    sent = decode_payload(away.send(4, rank=4), plan_payload(recipe, state, 4, rank=4))
    assert all(torch.equal(each.units, -progress[name]) for name, each in sent.items())


def test_zero_inner_steps_send_exactly_nothing(make_recipe: RecipeMaker, corpus: Corpus) -> None:
    """CASES 1: a worker that has just joined and did no step owes nothing."""
    for codec in CodecKind:
        recipe = make_recipe(codec)
        worker = _worker(recipe, corpus)
        report = worker.train(0, 8, should_stop=lambda: True)
        assert (report.steps, report.tokens, report.loss_micro) == (0, 0, 0)
        decoded = decode_payload(worker.send(0, rank=4), plan_payload(recipe, worker.canonical, 0, rank=4))
        assert not any(each.units.any() for each in decoded.values())


def test_stopped_round_goes_on_where_it_stopped(make_recipe: RecipeMaker, corpus: Corpus) -> None:
    recipe = make_recipe()
    whole, stopped = _worker(recipe, corpus), _worker(recipe, corpus)
    report = whole.train(0, 8)
    asked = iter([False, False, False, True])
    first = stopped.train(0, 8, should_stop=lambda: next(asked))
    second = stopped.train(0, 8)
    assert (first.steps, second.steps) == (3, 5)
    assert report.tokens == first.tokens + second.tokens
    assert report.loss_micro > 0
    assert stopped.digest() == whole.digest()


def test_norm_weights_have_moved_after_fifty_steps(make_recipe: RecipeMaker, corpus: Corpus) -> None:
    """CASES 8: the agreed grid is fine enough for the smallest updates, and they get there."""
    recipe = make_recipe(CodecKind.LOW_RANK_INT4, num_rounds=7)
    state, _ = simulate(recipe, corpus, 2)
    for name, theta in state.theta.items():
        if "norm" in name:
            assert bool((theta != create_genesis(recipe).theta[name]).all()), name


def test_training_lowers_the_held_out_loss_of_the_agreed_theta(make_recipe: RecipeMaker, corpus: Corpus) -> None:
    recipe = make_recipe(CodecKind.LOW_RANK_INT4, fragments=4, overlap=1, num_rounds=24)
    worker = _worker(recipe, corpus)
    before = worker.evaluate(create_genesis(recipe))
    state, _ = simulate(recipe, corpus, 2)
    assert before == pytest.approx(math.log(256), abs=0.3)
    assert worker.evaluate(state) < before - 2


def test_non_finite_gradient_changes_nothing(make_recipe: RecipeMaker, corpus: Corpus) -> None:
    recipe = make_recipe()
    worker = _worker(recipe, corpus)
    _train(worker, recipe, 0)
    before = {name: weight.detach().clone() for name, weight in worker._inner.weights.items()}
    handle = worker._inner.model.register_forward_hook(
        lambda *_: torch.full((2, 16, 256), math.nan, requires_grad=True)
    )
    report = worker.train(1, 3)
    handle.remove()
    assert (report.steps, report.skipped, report.loss_micro) == (3, 3, 0)
    assert all(torch.equal(before[name], weight) for name, weight in worker._inner.weights.items())


def test_invalid_non_finite_weights_are_never_sent(make_recipe: RecipeMaker, corpus: Corpus) -> None:
    recipe = make_recipe()
    worker = _worker(recipe, corpus)
    with torch.no_grad():
        worker._inner.weights["layers.0.qkv.weight"][1, 2] = math.inf
    with pytest.raises(NonFiniteUpdateError, match=r"1 of 768 local weights of 'layers\.0\.qkv\.weight'"):
        worker.send(0, rank=4)
    assert worker.in_flight == ()
    assert not any(residual.any() for residual in worker._residual.values())


def test_invalid_initial_root_refuses_before_the_first_step(make_recipe: RecipeMaker, corpus: Corpus) -> None:
    """CASES 13: peers that start from different weights never train together."""
    recipe = make_recipe()
    agreed = create_genesis(recipe).root()
    LocalWorker(recipe, create_genesis(recipe), 0, MEMBERS[0], corpus=corpus, agreed_root=agreed)
    other = create_genesis(replace(recipe, seed=recipe.seed + 1))
    with pytest.raises(RootMismatchError, match=agreed.hex()):
        LocalWorker(recipe, other, 0, MEMBERS[0], corpus=corpus, agreed_root=agreed)


def test_invalid_round_out_of_order(make_recipe: RecipeMaker, corpus: Corpus) -> None:
    recipe = make_recipe()
    worker = _worker(recipe, corpus)
    with pytest.raises(VersionMismatchError, match="round 1 cannot be applied to version 0"):
        worker.apply(settle_void(worker.canonical), 1, None)


def test_older_state_knows_no_later_update(make_recipe: RecipeMaker, corpus: Corpus) -> None:
    """A worker whose newest file was lost can't apply a round that counted what it doesn't have: nothing changes."""
    recipe = make_recipe(CodecKind.LOW_RANK_INT4, overlap=0)
    lost, state = _worker(recipe, corpus), create_genesis(recipe)
    _train(lost, recipe, 0)
    settlement = _settle(recipe, state, 0, [lost.send(0, rank=4)])
    older = _worker(recipe, corpus)
    before = older.digest()
    with pytest.raises(UnknownUpdateError, match="next: start fresh from the agreed state"):
        older.apply(settlement, 0, True)
    assert older.digest() == before


def test_invalid_state_of_another_worker_or_run(make_recipe: RecipeMaker, corpus: Corpus, tmp_path: Path) -> None:
    recipe = make_recipe()
    path = tmp_path / "worker.state"
    _worker(recipe, corpus).save(path)
    with pytest.raises(WorkerStateForeignError, match=MEMBERS[1].hex()):
        LocalWorker.load(path, recipe, MEMBERS[1], corpus=corpus)
    with pytest.raises(WorkerStateForeignError, match="recipe"):
        LocalWorker.load(path, replace(recipe, seed=99), MEMBERS[0], corpus=corpus)
