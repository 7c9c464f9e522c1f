"""A member that lies: what it does to the loss under each aggregation, beside nobody lying (TRAINING, *Robustness*)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
import torch

from training.attack_kind import AttackKind
from training.attacks import craft_payload
from training.core.aggregation import Contribution, aggregate, compute_square_sum
from training.core.canonical import create_genesis
from training.core.payload import decode_payload, plan_payload, validate
from training.core.recipe import AggregationKind, CodecKind, Recipe
from training.data.corpus import Corpus
from training.evaluation import evaluate_state
from training.local import LocalWorker
from training.simulate import simulate

RecipeMaker = Callable[..., Recipe]
MEAN = AggregationKind.MEAN
LOSSES = {
    AggregationKind.MEAN: (2.587, 14.42, 2.596, 2.595, 2.614),
    AggregationKind.MEDIAN_CLIP: (2.587, 2.813, 2.596, 2.595, 2.614),
    AggregationKind.TRIMMED_MEAN: (2.590, 2.603, 2.595, 2.598, 2.600),
    AggregationKind.CENTERED_CLIP: (2.587, 2.600, 2.596, 2.595, 2.597),
}
"""Nats a byte by aggregation: nobody lies, then each attack in the order of `AttackKind`."""
UNTRAINED = 5.6
"""Nats a byte: ln 256, and more than that is wrecked, by how much is no matter."""
PLAIN = {"momentum_start_q15": 0, "momentum_end_q15": 0, "rate_start_q15": 32768, "rate_end_q15": 32768}


@pytest.fixture(scope="module")
def loss_of(make_recipe: RecipeMaker, corpus: Corpus) -> Callable[[AggregationKind, AttackKind | None], float]:
    """Return the held-out loss of four workers, the last of whom lies, by aggregation and attack."""

    @cache
    def run(aggregation: AggregationKind, attack: AttackKind | None) -> float:
        torch.set_num_threads(1)
        recipe = make_recipe(CodecKind.DENSE_INT8, num_rounds=8, aggregation=aggregation, **PLAIN)
        state, _ = simulate(recipe, corpus, 4, num_rounds=8, attack=attack)
        return evaluate_state(recipe, state, corpus)

    return run


@pytest.mark.parametrize("aggregation", list(AggregationKind))
@pytest.mark.parametrize("attack", [None, *AttackKind])
def test_loss_under_attack(
    loss_of: Callable[[AggregationKind, AttackKind | None], float],
    aggregation: AggregationKind,
    attack: AttackKind | None,
) -> None:
    """The table of SPEC, *Aggregation*; the room is for other orders of summation in the inner steps."""
    column = [None, *AttackKind].index(attack)
    got = loss_of(aggregation, attack)
    room = 2.0 if LOSSES[aggregation][column] > UNTRAINED else 0.02
    assert got == pytest.approx(LOSSES[aggregation][column], abs=room), f"honest mean {loss_of(MEAN, None):.3f}"


@pytest.mark.parametrize("kind", list(AttackKind))
@pytest.mark.parametrize("codec", [CodecKind.LOW_RANK_2BIT, CodecKind.SPARSE_2BIT, CodecKind.DENSE_INT8])
def test_attacks_are_valid_payloads(
    make_recipe: RecipeMaker, corpus: Corpus, kind: AttackKind, codec: CodecKind
) -> None:
    """Otherwise the test above would only show that refused bytes have no weight."""
    recipe = make_recipe(codec)
    workers = [
        LocalWorker(recipe, create_genesis(recipe), 0, bytes([index + 1]) * 20, corpus=corpus) for index in range(3)
    ]
    payloads = []
    for worker in workers:
        worker.train(0, 4)
        payloads.append(worker.send(0, rank=4))
    plan = plan_payload(recipe, create_genesis(recipe), 0, rank=4)
    crafted = craft_payload(kind, plan, payloads[:2], payloads[2])
    validate(crafted, plan)
    own, sent = decode_payload(payloads[2], plan), decode_payload(crafted, plan)
    if kind is AttackKind.SIGN_FLIP:
        ratios = [
            compute_square_sum(sent[name].units) / max(1, compute_square_sum(each.units)) for name, each in own.items()
        ]
        assert max(ratios) > 50
    if kind is AttackKind.ZERO:
        assert not any(each.units.any() for each in sent.values())


def test_clip_follows_the_majority_and_not_the_zeros() -> None:
    def update(value: int) -> Contribution:
        return Contribution(units=torch.tensor([value, -value]), peak=abs(value), exponent=0)

    result = aggregate(AggregationKind.MEDIAN_CLIP, [update(8), update(10), update(0), update(-800)])
    assert result.shifts == (0, 0, 0, 6)
    assert result.mean.tolist() == [(2 * (8 + 10 + (-800 >> 6)) + 4) // 8, (2 * (-8 - 10 + (800 >> 6)) + 4) // 8]
    assert result.peak == 12
    two = aggregate(AggregationKind.MEDIAN_CLIP, [update(8), update(-800)])
    assert two.shifts == (0, 0)


@pytest.mark.parametrize("kind", list(AggregationKind))
def test_order_of_updates_does_not_matter(kind: AggregationKind) -> None:
    generator = torch.Generator().manual_seed(5)
    updates = [
        Contribution(units=torch.randint(-(2**20), 2**20, (7, 5), generator=generator) << 3 * index, peak=9, exponent=0)
        for index in range(5)
    ]
    one, other = aggregate(kind, updates), aggregate(kind, updates[::-1])
    assert torch.equal(one.mean, other.mean)
    assert one.shifts == other.shifts[::-1]


def test_sums_of_squares_are_exact() -> None:
    generator = torch.Generator().manual_seed(6)
    for bits in (8, 16, 31, 50, 61):
        values = torch.randint(-(2**bits), 2**bits, (70_001,), generator=generator)
        assert compute_square_sum(values) == sum(value * value for value in values.tolist())
    assert compute_square_sum(torch.zeros(0, dtype=torch.int64)) == 0


def test_clip_is_part_of_settle(make_recipe: RecipeMaker, corpus: Corpus) -> None:
    recipe = make_recipe(CodecKind.DENSE_INT8, num_rounds=2)
    clipped = []
    simulate(
        recipe,
        corpus,
        4,
        lambda done: clipped.append(done.settlement.clipped),
        num_rounds=2,
        attack=AttackKind.SIGN_FLIP,
    )
    assert clipped == [0b1000, 0b1000]
    plain = replace(recipe, outer=replace(recipe.outer, aggregation=AggregationKind.MEAN))
    simulate(plain, corpus, 4, lambda done: clipped.append(done.settlement.clipped), num_rounds=1)
    assert clipped[2:] == [0]
