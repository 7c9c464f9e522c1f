"""Settlement: exact, the same in any order, on any layout, and equal to the chain's scalar reference bit for bit."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from math import prod

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from payload_bytes import make_slot, random_body, read_element

from chain.core.reference import (
    ElementUpdate,
    compute_centered_mean,
    compute_clip_shifts,
    compute_trimmed_mean,
    decode_element,
    step_element,
    step_from_mean,
)
from training.core.aggregation import compute_mean
from training.core.canonical import CanonicalState, create_genesis
from training.core.codecs.protocol import SlotKind
from training.core.payload import HEADER_BYTES, PayloadPlan, decode_payload, plan_payload
from training.core.recipe import AggregationKind, CodecKind, Recipe
from training.core.schedule import OuterCoefficients, outer_coefficients
from training.core.settle import aggregate_slot, next_exponent, select_valid, settle, settle_void, step_tensor
from training.core.state_root import compute_entry, compute_state_root

RecipeMaker = Callable[..., Recipe]
ROUND = 5


def _random_payload(plan: PayloadPlan, rng: random.Random, *, rest: float = 0.2) -> bytes:
    """Return valid bytes that mean anything at all."""
    generator = np.random.default_rng(rng.randrange(2**32))
    return plan.header + b"".join(random_body(slot, generator, rest=rest) for slot in plan.slots)


def _element(payload: bytes, plan: PayloadPlan, name: str, index: int) -> ElementUpdate:
    """Read one element of a payload by SPEC's offsets, without the code under test."""
    at = HEADER_BYTES
    for slot in plan.slots:
        if slot.name == name:
            break
        at += slot.num_bytes
    return read_element(payload[at : at + slot.num_bytes], slot, index)


def _expected_step(
    kind: str,
    start: tuple[int, int],
    updates: list[ElementUpdate],
    shifts: tuple[int, ...],
    coefficients: OuterCoefficients,
) -> tuple[int, int]:
    """Return (theta, u) of one element by the chain's reference."""
    values = [decode_element(update) for update in updates]
    mu, eta = coefficients.momentum_q15, coefficients.rate_q15
    if kind == "trimmed_mean" and len(updates) > 2:
        return step_from_mean(*start, compute_trimmed_mean(values), momentum_q15=mu, rate_q15=eta)
    if kind == "centered_clip" and len(updates) > 2:
        return step_from_mean(*start, compute_centered_mean(values, shifts), momentum_q15=mu, rate_q15=eta)
    clipped = [replace(update, shift=shift) for update, shift in zip(updates, shifts, strict=True)]
    return step_element(*start, clipped, momentum_q15=mu, rate_q15=eta)


def _by_column(tensor: torch.Tensor) -> torch.Tensor:
    """Return a matrix transposed in memory; vectors as they are."""
    return tensor.t().contiguous()


def _busy_state(recipe: Recipe, rng: random.Random) -> CanonicalState:
    """Return a state with large momenta and values near saturation in it."""
    state = create_genesis(recipe)
    generator = torch.Generator().manual_seed(rng.randrange(2**31))

    def draw(theta: torch.Tensor) -> torch.Tensor:
        return torch.randint(1 - 2**31, 2**31 - 1, theta.shape, generator=generator).to(torch.int32)

    return replace(
        state,
        theta={name: draw(theta) for name, theta in state.theta.items()},
        momentum={name: draw(theta) for name, theta in state.theta.items()},
        entry_cache={},
    )


@pytest.mark.parametrize("codec", list(CodecKind))
@pytest.mark.parametrize(
    ("num_payloads", "kind"),
    [(1, "median_clip"), (2, "median_clip"), (2, "trimmed_mean"), *((5, kind) for kind in AggregationKind)],
)
def test_settle_equals_the_scalar_reference(
    make_recipe: RecipeMaker, codec: CodecKind, num_payloads: int, kind: str
) -> None:
    rng = random.Random(f"{codec} {num_payloads}")
    recipe = make_recipe(codec, fragments=2, aggregation=AggregationKind(kind))
    before = _busy_state(recipe, rng)
    plan = plan_payload(recipe, before, ROUND, rank=2)
    payloads = [_random_payload(plan, rng) for _ in range(num_payloads)]
    after = settle(recipe, before, ROUND, payloads, rank=2, local_steps=8)
    assert (after.refused, after.num_accepted) == (0, num_payloads)
    outer = outer_coefficients(recipe, ROUND)
    decoded = [decode_payload(payload, plan) for payload in payloads]
    num_clipped = 0
    for slot in plan.slots:
        columns = list(zip(*(each[slot.name].units.reshape(-1).tolist() for each in decoded), strict=True))
        shifts = _expected_shifts(kind, columns)
        num_clipped += sum(map(bool, shifts))
        theta, momentum = before.theta[slot.name].reshape(-1), before.momentum[slot.name].reshape(-1)
        for index in rng.sample(range(theta.numel()), min(40, theta.numel())):
            updates = [_element(payload, plan, slot.name, index) for payload in payloads]
            values = [decode_element(update) for update in updates]
            assert values == list(columns[index])
            expected = _expected_step(kind, (int(theta[index]), int(momentum[index])), updates, shifts, outer)
            got = (
                int(after.state.theta[slot.name].reshape(-1)[index]),
                int(after.state.momentum[slot.name].reshape(-1)[index]),
            )
            assert got == expected, (slot.name, index)
    if num_payloads == 5 and kind == "median_clip" and codec is not CodecKind.NONE:
        assert num_clipped > 0
    if num_payloads <= 2 or kind in ("mean", "trimmed_mean"):
        assert after.clipped == num_clipped == 0


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(SlotKind),
    st.sampled_from(AggregationKind),
    st.tuples(st.integers(1, 13), st.integers(1, 13)) | st.sampled_from([(24, 25), (3, 1500), (1, 577)]),
    st.integers(1, 4),
    st.integers(0, 24),
    st.lists(st.tuples(st.integers(0, 2**32), st.sampled_from([0.0, 0.3, 1.0])), min_size=1, max_size=7),
    st.tuples(st.integers(0, 32767), st.integers(1, 65536)),
)
def test_any_payloads_settle_as_the_scalar_reference_says(
    slot_kind: SlotKind,
    kind: AggregationKind,
    shape: tuple[int, int],
    rank: int,
    exponent: int,
    contents: list[tuple[int, float]],
    rates: tuple[int, int],
) -> None:
    """Any shape, number of payloads and contents, with parts or all of them at rest; up to 60 elements each."""
    slot = make_slot(slot_kind, shape, rank=min(rank, *shape), exponent=exponent)
    plan = PayloadPlan(header=bytes(HEADER_BYTES), slots=(slot,))
    generators = [(np.random.default_rng(seed), rest) for seed, rest in contents]
    payloads = [
        plan.header + random_body(slot, rng, rest=rest, is_owed=bool(rng.integers(2))) for rng, rest in generators
    ]
    assert select_valid(payloads, plan) == (list(range(len(payloads))), ())
    result = aggregate_slot(kind, payloads, plan, slot)
    columns = list(
        zip(*(decode_payload(each, plan)[slot.name].units.reshape(-1).tolist() for each in payloads), strict=True)
    )
    shifts = _expected_shifts(kind, columns)
    assert kind == "centered_clip" or result.shifts == shifts
    draw = generators[0][0]
    theta, momentum = (torch.from_numpy(draw.integers(1 - 2**31, 2**31, shape, np.int32)) for _ in range(2))
    coefficients = OuterCoefficients(momentum_q15=rates[0], rate_q15=rates[1])
    after = [each.reshape(-1) for each in step_tensor(theta, momentum, result.mean, coefficients)]
    for at in draw.permutation(prod(shape))[:60].tolist():
        updates = [read_element(payload[HEADER_BYTES:], slot, at) for payload in payloads]
        assert [decode_element(update) for update in updates] == list(columns[at])
        start = (int(theta.reshape(-1)[at]), int(momentum.reshape(-1)[at]))
        expected = _expected_step(kind, start, updates, shifts, coefficients)
        assert (int(after[0][at]), int(after[1][at])) == expected, at


def _expected_shifts(kind: str, columns: list[tuple[int, ...]]) -> tuple[int, ...]:
    """Return each update's shift for one tensor, from all its elements in plain integers."""
    num_updates = len(columns[0])
    if kind == "median_clip":
        return compute_clip_shifts([sum(column[i] ** 2 for column in columns) for i in range(num_updates)])
    if kind == "centered_clip":
        centers = [sorted(column)[(num_updates - 1) // 2] for column in columns]
        return compute_clip_shifts(
            [sum((column[i] - c) ** 2 for column, c in zip(columns, centers, strict=True)) for i in range(num_updates)]
        )
    return (0,) * num_updates


@settings(deadline=None)
@given(
    st.lists(st.integers(-(2**40), 2**40), min_size=1, max_size=9),
    st.integers(1 - 2**31, 2**31 - 1),
    st.integers(1 - 2**31, 2**31 - 1),
    st.integers(0, 32767),
    st.integers(1, 65536),
)
def test_step_equals_the_scalar_reference(values: list[int], theta: int, momentum: int, mu: int, eta: int) -> None:
    updates = [ElementUpdate(exponent=0, scales=(1,), left=(value,), right=(1,)) for value in values]
    mean = compute_mean(torch.tensor([sum(values)]), len(values))
    coefficients = OuterCoefficients(momentum_q15=mu, rate_q15=eta)
    got = step_tensor(torch.tensor([theta]).int(), torch.tensor([momentum]).int(), mean, coefficients)
    expected = step_element(theta, momentum, updates, momentum_q15=mu, rate_q15=eta)
    assert (int(got[0]), int(got[1])) == expected


def test_payload_order_and_thread_count_do_not_matter(make_recipe: RecipeMaker) -> None:
    rng = random.Random(3)
    recipe = make_recipe(CodecKind.LOW_RANK_INT4)
    before = create_genesis(recipe)
    plan = plan_payload(recipe, before, ROUND, rank=3)
    payloads = [_random_payload(plan, rng) for _ in range(6)]
    roots = set()
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        rng.shuffle(payloads)
        roots.add(settle(recipe, before, ROUND, payloads, rank=3, local_steps=8).state.root())
    assert len(roots) == 1


@pytest.mark.parametrize("codec", list(CodecKind))
@pytest.mark.parametrize("kind", ["mean", "median_clip"])
def test_thread_count_does_not_matter_to_large_tensors(make_recipe: RecipeMaker, codec: CodecKind, kind: str) -> None:
    """172,800 elements: torch divides work among threads from 32,768 on, and `settle` from one chunk a thread."""
    rng = random.Random(8)
    recipe = make_recipe(codec, fragments=8, aggregation=AggregationKind(kind))
    recipe = replace(recipe, model=replace(recipe.model, width=240))
    before = _busy_state(recipe, rng)
    plan = plan_payload(recipe, before, 8, rank=8)
    assert max(prod(slot.shape) for slot in plan.slots) > 5 * 32_768
    payloads = [_random_payload(plan, rng) for _ in range(3)]
    states = []
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        after = settle(recipe, before, 8, payloads, rank=8, local_steps=8)
        assert after.num_accepted == len(payloads)
        states.append(after.state)
        rng.shuffle(payloads)
    assert len({state.root() for state in states}) == 1
    assert all((states[0].theta[slot.name] != before.theta[slot.name]).any() for slot in plan.slots)


def test_a_second_layout_settles_to_the_same_root(make_recipe: RecipeMaker) -> None:
    """Two stages step only their own tensors, kept column by column; their entries make the same root."""
    rng = random.Random(4)
    recipe = make_recipe(CodecKind.LOW_RANK_INT4)
    before = create_genesis(recipe)
    plan = plan_payload(recipe, before, ROUND, rank=3)
    payloads = [_random_payload(plan, rng) for _ in range(3)]
    whole = settle(recipe, before, ROUND, payloads, rank=3, local_steps=8).state
    entries: dict[str, bytes] = {}
    slots = {slot.name: slot for slot in plan.slots}
    names = sorted(before.theta)
    for stage in (names[len(names) // 2 :], names[: len(names) // 2]):
        for name in reversed(stage):
            mean = aggregate_slot(recipe.outer.aggregation, payloads, plan, slots[name]).mean
            theta, momentum = step_tensor(
                _by_column(before.theta[name]),
                _by_column(before.momentum[name]),
                _by_column(mean),
                outer_coefficients(recipe, ROUND),
            )
            shape = before.theta[name].shape
            theta, momentum = theta.reshape(shape[::-1]), momentum.reshape(shape[::-1])
            entries[name] = compute_entry(name, before.fraction_bits[name], _by_column(theta), _by_column(momentum))
    assert compute_state_root(whole.header(), [entries[name] for name in names]) == whole.root()


def test_refused_payloads_have_no_weight(make_recipe: RecipeMaker) -> None:
    rng = random.Random(5)
    recipe = make_recipe(CodecKind.LOW_RANK_INT4, fragments=2)
    before = create_genesis(recipe)
    plan = plan_payload(recipe, before, ROUND, rank=3)
    good = [_random_payload(plan, rng) for _ in range(2)]
    other_round = plan_payload(recipe, before, ROUND + 2, rank=3).header + good[0][HEADER_BYTES:]
    bad = [b"", good[0][:-1], good[0] + b"\x00", other_round, bytes(len(good[0])), b"\xff" * len(good[0])]
    mixed = settle(recipe, before, ROUND, [bad[0], good[0], *bad[1:4], good[1], *bad[4:]], rank=3, local_steps=8)
    assert mixed.refused == 0b11011101
    reasons = dict(mixed.reasons)
    assert sorted(reasons) == [0, 2, 3, 4, 6, 7], "each that is refused has its reason"
    assert reasons[0] == f"length in bytes: 0, expected {plan.num_bytes}"
    assert reasons[4] == f"header: {other_round[:HEADER_BYTES].hex()}, expected {plan.header.hex()}"
    assert mixed.num_accepted == 2
    assert mixed.state.root() == settle(recipe, before, ROUND, good, rank=3, local_steps=8).state.root()


@pytest.mark.parametrize(
    ("number", "codec"),
    [*enumerate(("none", "dense_int8", "dense_int4", "low_rank_int4", "low_rank_2bit", "sparse_2bit", "vector"))],
)
def test_header_is_that_of_every_run_before(make_recipe: RecipeMaker, number: int, codec: str) -> None:
    """Golden, as the bodies of `test_codecs.py`: another header is another protocol."""
    recipe = make_recipe(CodecKind(codec), fragments=2)
    header = plan_payload(recipe, create_genesis(recipe), ROUND, rank=3).header
    assert header.hex() == f"4150504c010{number}00010003000000000005"


@pytest.mark.parametrize(("rank", "used"), [(0, 4), (3, 3), (1 << 32, 4096)])
def test_rank_of_the_chain_is_bounded_and_the_recipes_where_there_is_none(
    make_recipe: RecipeMaker, rank: int, used: int
) -> None:
    recipe = make_recipe(CodecKind.LOW_RANK_INT4)
    plan = plan_payload(recipe, create_genesis(recipe), 0, rank=rank)
    assert int.from_bytes(plan.header[8:10], "big") == used
    assert all(slot.rank <= min(used, *slot.shape) for slot in plan.slots)


@pytest.mark.parametrize("payloads", [[], [b"nonsense"]])
def test_nothing_counted_leaves_the_state_as_it_was(make_recipe: RecipeMaker, payloads: list[bytes]) -> None:
    recipe = make_recipe()
    before = create_genesis(recipe)
    after = settle(recipe, before, 0, payloads, rank=3, local_steps=8)
    assert after.state is before
    assert after.num_accepted == 0
    assert settle_void(before).state is before


def test_equal_bytes_from_two_workers_count_twice(make_recipe: RecipeMaker) -> None:
    """CASES 22: two updates that happen to be equal are two updates."""
    rng = random.Random(6)
    recipe = make_recipe(CodecKind.DENSE_INT8)
    before = create_genesis(recipe)
    plan = plan_payload(recipe, before, 0, rank=1)
    same, other = _random_payload(plan, rng), _random_payload(plan, rng)
    twice = settle(recipe, before, 0, [same, same, other], rank=1, local_steps=8)
    once = settle(recipe, before, 0, [same, other], rank=1, local_steps=8)
    assert (twice.num_accepted, once.num_accepted) == (3, 2)
    assert twice.state.root() != once.state.root()


def test_only_the_fragment_moves_and_roots_are_incremental(make_recipe: RecipeMaker) -> None:
    rng = random.Random(7)
    recipe = make_recipe(CodecKind.LOW_RANK_INT4, fragments=3)
    before = create_genesis(recipe)
    before.root()
    plan = plan_payload(recipe, before, ROUND, rank=3)
    after = settle(recipe, before, ROUND, [_random_payload(plan, rng)], rank=3, local_steps=8).state
    moved = {slot.name for slot in plan.slots}
    assert set(after.entry_cache) == set(before.theta) - moved
    assert all((after.theta[name] is before.theta[name]) == (name not in moved) for name in before.theta)
    assert after.root() == replace(after, entry_cache={}).root()


@settings(deadline=None)
@given(st.integers(0, 24), st.integers(0, 255 << 24))
def test_exponent_follows_the_largest_scale(exponent: int, peak: int) -> None:
    after = next_exponent(exponent, peak)
    assert 0 <= after <= 24
    assert abs(after - exponent) <= 8
    if peak and abs(after - exponent) < 8:
        assert after == 24 or 255 << after >= 2 * peak
        assert after == 0 or 255 << (after - 1) < 2 * peak
    if peak == 0:
        assert after == exponent
