"""Settlement: exact, the same in any order, on any layout, and equal to the chain's scalar reference bit for bit."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from math import prod

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

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
from training.core.codecs.protocol import Slot, SlotKind
from training.core.codecs.sparse import count_blocks, count_kept
from training.core.codecs.words import WORDS
from training.core.payload import HEADER_BYTES, PayloadPlan, decode_payload, plan_payload
from training.core.recipe import AggregationKind, CodecKind, Recipe
from training.core.schedule import outer_coefficients
from training.core.settle import aggregate_slot, next_exponent, settle, settle_void, step_tensor
from training.core.state_root import compute_entry, compute_state_root

RecipeMaker = Callable[..., Recipe]
ROUND = 5


def _random_payload(plan: PayloadPlan, rng: random.Random) -> bytes:
    """Return valid bytes that mean anything at all."""
    chunks = [plan.header]
    for slot in plan.slots:
        if slot.kind is SlotKind.SPARSE_2BIT:
            chunks.append(_random_sparse_body(slot, rng))
            continue
        if slot.kind is SlotKind.VECTOR:
            body = bytearray([slot.exponent, *(rng.randrange(256) for _ in range(slot.num_bytes - 1))])
            body[-1] &= 15 if -(-prod(slot.shape) // 6) % 2 else 255
            chunks.append(bytes(body))
            continue
        if slot.kind is SlotKind.INT32:
            chunks.append(
                b"".join(
                    rng.randint(1 - 2**31, 2**31 - 1).to_bytes(4, "little", signed=True)
                    for _ in range(prod(slot.shape))
                )
            )
            continue
        low, high = max(0, slot.exponent - 16), min(24, slot.exponent + 16)
        num_scales = _num_scales(slot)
        chunks.append(bytes([rng.randint(low, high), *(rng.randrange(256) for _ in range(num_scales))]))
        if slot.kind is SlotKind.INT8:
            chunks.append(bytes(rng.choice([c for c in range(256) if c != 128]) for _ in range(prod(slot.shape))))
        for count in _nibble_streams(slot):
            nibbles = [rng.randint(1, 15) for _ in range(count)] + [0] * (count % 2)
            chunks.append(bytes(a | b << 4 for a, b in zip(nibbles[::2], nibbles[1::2], strict=True)))
        if slot.kind is SlotKind.LOW_RANK_2BIT:
            for side in slot.shape:
                chunks.append(_random_pairs(side * slot.rank, rng))
    return b"".join(chunks)


def _random_pairs(count: int, rng: random.Random) -> bytes:
    pairs = [rng.randrange(4) for _ in range(count)] + [0] * (-count % 4)
    return bytes(a | b << 2 | c << 4 | d << 6 for a, b, c, d in zip(*(pairs[i::4] for i in range(4)), strict=True))


def _random_sparse_body(slot: Slot, rng: random.Random) -> bytes:
    count = prod(slot.shape)
    positions: list[int] = []
    for start in range(0, count, 4096):
        length = min(4096, count - start)
        positions += sorted(rng.sample(range(length), count_kept(length)))
    padded = [*positions, 0]
    packed = b"".join((a | b << 12).to_bytes(3, "little") for a, b in zip(padded[::2], padded[1::2], strict=False))
    head = bytes([slot.exponent, *(rng.randrange(256) for _ in range(count_blocks(count)))])
    return head + packed[: (3 * len(positions) + 1) // 2] + _random_pairs(len(positions), rng)


def _num_scales(slot: Slot) -> int:
    if slot.kind in (SlotKind.LOW_RANK_INT4, SlotKind.LOW_RANK_2BIT):
        return slot.rank
    return slot.shape[0] if len(slot.shape) == 2 else 1


def _nibble_streams(slot: Slot) -> list[int]:
    if slot.kind is SlotKind.LOW_RANK_INT4:
        return [slot.shape[0] * slot.rank, slot.shape[1] * slot.rank]
    return [prod(slot.shape)] if slot.kind is SlotKind.INT4 else []


def _nibble(data: bytes, index: int) -> int:
    return (data[index // 2] >> 4 * (index % 2) & 15) - 8


def _element(payload: bytes, plan: PayloadPlan, name: str, index: int) -> ElementUpdate:
    """Read one element of a payload by SPEC's offsets, without the code under test."""
    at = HEADER_BYTES
    for slot in plan.slots:
        if slot.name == name:
            break
        at += slot.num_bytes
    body = payload[at : at + slot.num_bytes]
    if slot.kind is SlotKind.INT32:
        value = int.from_bytes(body[4 * index : 4 * index + 4], "little", signed=True)
        return ElementUpdate(exponent=0, scales=(1,), left=(value,), right=(1,))
    if slot.kind is SlotKind.SPARSE_2BIT:
        return _sparse_element(body, prod(slot.shape), index)
    if slot.kind is SlotKind.VECTOR:
        group, place = divmod(index, 6)
        nibbles = body[1 + -(-prod(slot.shape) // 576) :]
        word = sum(
            (nibbles[g // 2] >> 4 * (g % 2) & 15) << 4 * (group - g) for g in range(group - group % 96, group + 1)
        )
        at = 6 * (word % 512) + place
        code = int.from_bytes(WORDS[at : at + 1], signed=True)
        return ElementUpdate(exponent=body[0], scales=(body[1 + index // 576],), left=(code,), right=(1,))
    columns = slot.shape[-1]
    codes = body[1 + _num_scales(slot) :]
    if slot.kind is SlotKind.LOW_RANK_2BIT:
        row, column = divmod(index, columns)
        split = (slot.shape[0] * slot.rank + 3) // 4
        return ElementUpdate(
            exponent=body[0],
            scales=tuple(body[1 : 1 + slot.rank]),
            left=tuple(_pair(codes[:split], row * slot.rank + r) * 2 - 3 for r in range(slot.rank)),
            right=tuple(_pair(codes[split:], column * slot.rank + r) * 2 - 3 for r in range(slot.rank)),
        )
    if slot.kind is SlotKind.LOW_RANK_INT4:
        row, column = divmod(index, columns)
        split = (slot.shape[0] * slot.rank + 1) // 2
        return ElementUpdate(
            exponent=body[0],
            scales=tuple(body[1 : 1 + slot.rank]),
            left=tuple(_nibble(codes[:split], row * slot.rank + r) for r in range(slot.rank)),
            right=tuple(_nibble(codes[split:], column * slot.rank + r) for r in range(slot.rank)),
        )
    scale = body[1 + (index // columns if len(slot.shape) == 2 else 0)]
    code = (
        int.from_bytes(codes[index : index + 1], signed=True) if slot.kind is SlotKind.INT8 else _nibble(codes, index)
    )
    return ElementUpdate(exponent=body[0], scales=(scale,), left=(code,), right=(1,))


def _pair(data: bytes, index: int) -> int:
    return data[index // 4] >> 2 * (index % 4) & 3


def _sparse_element(body: bytes, count: int, index: int) -> ElementUpdate:
    """Look one element up among the positions of its block."""
    blocks, kept, block = count_blocks(count), count_kept(count), index // 4096
    split = 1 + blocks + (3 * kept + 1) // 2
    stream = int.from_bytes(body[1 + blocks : split], "little")
    code = 0
    for each in range(64 * block, min(64 * block + 64, kept)):
        if stream >> 12 * each & 4095 == index % 4096:
            code = (-3, -2, 2, 3)[_pair(body[split:], each)]
    return ElementUpdate(exponent=body[0], scales=(body[1 + block],), left=(code,), right=(1,))


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
            start = (int(theta[index]), int(momentum[index]))
            coefficients = {"momentum_q15": outer.momentum_q15, "rate_q15": outer.rate_q15}
            if kind == "trimmed_mean" and num_payloads > 2:
                expected = step_from_mean(*start, compute_trimmed_mean(values), **coefficients)
            elif kind == "centered_clip" and num_payloads > 2:
                expected = step_from_mean(*start, compute_centered_mean(values, shifts), **coefficients)
            else:
                clipped = [replace(update, shift=shift) for update, shift in zip(updates, shifts, strict=True)]
                expected = step_element(*start, clipped, **coefficients)
            got = (
                int(after.state.theta[slot.name].reshape(-1)[index]),
                int(after.state.momentum[slot.name].reshape(-1)[index]),
            )
            assert got == expected, (slot.name, index)
    if num_payloads == 5 and kind == "median_clip" and codec is not CodecKind.NONE:
        assert num_clipped > 0
    if num_payloads <= 2 or kind in ("mean", "trimmed_mean"):
        assert after.clipped == num_clipped == 0


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
    from training.core.schedule import OuterCoefficients

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
