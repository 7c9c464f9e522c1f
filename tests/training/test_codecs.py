"""Codecs: what is kept as sent is what a reader decodes; any bytes are accepted or refused, never worse (CASES 15)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from math import prod
from pathlib import Path

import numpy as np
import pytest
import torch
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st
from payload_bytes import DENSE, LOW_RANKS, count_scales, make_slot, pack_body, random_body, read_element

from chain.core.reference import decode_element
from training.core.codecs.integers import LEVELS_2BIT, LEVELS_SPARSE, pack_2bit, pack_int4, unpack_2bit, unpack_int4
from training.core.codecs.protocol import Slot, SlotKind
from training.core.codecs.registry import codec_of, codec_of_tensor, count_slot_bytes, plan_slot
from training.core.codecs.sparse import count_kept
from training.core.codecs.words import NUM_WORDS, WORD_ELEMENTS, WORDS
from training.core.errors import PayloadRefusedError
from training.core.recipe import CodecKind

SHAPES = [(), (0,), (1,), (7,), (64,), (0, 5), (5, 0), (1, 1), (3, 2), (24, 40), (65, 33), (96, 95)]
SEED = bytes(32)
GOLDEN = json.loads((Path(__file__).parent.parent / "vectors" / "training_payloads.json").read_text())

SMALL_SLOTS = [
    make_slot(SlotKind.INT32, (3,)),
    *(make_slot(kind, shape) for kind in DENSE for shape in ((), (1,), (7,), (0, 5), (5, 0), (3, 5), (4, 6))),
    *(make_slot(kind, (1, 1), rank=1) for kind in LOW_RANKS),
    *(make_slot(kind, (5, 3), rank=3) for kind in LOW_RANKS),
    *(make_slot(kind, (6, 4), rank=2, exponent=20) for kind in LOW_RANKS),
    *(make_slot(SlotKind.SPARSE_2BIT, shape) for shape in ((1, 1), (3, 5), (50, 49), (65, 65), (64, 129))),
    *(make_slot(SlotKind.VECTOR, shape) for shape in ((1, 1), (3, 3), (5, 5), (9, 2), (24, 25), (1, 577), (1, 583))),
]
"""Odd sizes of every kind: paddings, short last blocks and groups."""


def _name(slot: Slot) -> str:
    return f"{slot.kind.name} {slot.shape}"


def _slot(kind: CodecKind, shape: tuple[int, ...], rank: int = 4, exponent: int = 8) -> Slot:
    return plan_slot(kind, "tensor", shape, rank=rank, exponent=exponent)


def _low_rank_slot(kind: SlotKind, shape: tuple[int, int], rank: int, exponent: int = 8) -> Slot:
    """Force low rank, whatever it saves."""
    return make_slot(kind, shape, rank=rank, exponent=exponent)


def _draw(shape: tuple[int, ...], scale: float, seed: int = 0) -> torch.Tensor:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale).long()


@pytest.mark.parametrize("kind", list(CodecKind))
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("scale", [0.0, 1.0, 3e4, 2e9])
def test_sent_is_what_a_reader_decodes(kind: CodecKind, shape: tuple[int, ...], scale: float) -> None:
    slot = _slot(kind, shape)
    units = _draw(shape, scale)
    compressed = codec_of(slot).compress(units, slot, None, SEED)
    assert len(compressed.body) == slot.num_bytes
    codec_of(slot).validate(compressed.body, slot)
    decoded, _ = codec_of(slot).decode(compressed.body, slot)
    assert decoded.dtype == torch.int64
    assert decoded.shape == shape
    assert torch.equal(decoded, compressed.units)
    if scale == 0.0:
        assert not decoded.any()


@pytest.mark.parametrize("codec", LOW_RANKS)
@pytest.mark.parametrize("rank", [1, 3, 8])
@pytest.mark.parametrize("kind", ["zero", "rank one", "dependent columns", "one element", "random"])
def test_low_rank_is_finite_for_degenerate_matrices(codec: SlotKind, rank: int, kind: str) -> None:
    slot = _low_rank_slot(codec, (24, 8), rank)
    units = torch.zeros(24, 8, dtype=torch.int64)
    if kind == "rank one":
        units = _draw((24, 1), 3e3) * _draw((1, 8), 10)
    elif kind == "dependent columns":
        units = _draw((24, 1), 3e5).expand(24, 8).clone()
    elif kind == "one element":
        units[3, 5] = 1_000_000
    elif kind == "random":
        units = _draw((24, 8), 1e5)
    compressed = codec_of(slot).compress(units, slot, None, SEED)
    codec_of(slot).validate(compressed.body, slot)
    again = codec_of(slot).compress(units, slot, compressed.warm, SEED)
    for each in (compressed, again):
        assert float((units - each.units).double().norm()) <= float(units.double().norm())
        assert each.warm is None or bool(torch.isfinite(each.warm).all())


@pytest.mark.parametrize("codec", LOW_RANKS)
@pytest.mark.parametrize("old_rank", [2, 5, 9])
def test_low_rank_starts_warm_from_another_rank(codec: SlotKind, old_rank: int) -> None:
    units = _draw((40, 24), 1e5)
    old = _low_rank_slot(codec, (40, 24), old_rank)
    warm = codec_of(old).compress(units, old, None, SEED)
    slot = _low_rank_slot(codec, (40, 24), 5)
    compressed = codec_of(slot).compress(units, slot, warm.warm, SEED)
    assert float((units - compressed.units).double().norm()) < float(units.double().norm())


@pytest.mark.parametrize(("codec", "bound"), [(SlotKind.LOW_RANK_INT4, 0.1), (SlotKind.LOW_RANK_2BIT, 0.45)])
def test_low_rank_keeps_most_of_a_low_rank_matrix(codec: SlotKind, bound: float) -> None:
    units = (_draw((48, 4), 300.0, 1) @ _draw((32, 4), 300.0, 2).T).long()
    slot = _low_rank_slot(codec, (48, 32), 8, exponent=9)
    compressed = codec_of(slot).compress(units, slot, None, SEED)
    residual = float((units - compressed.units).double().norm() / units.double().norm())
    assert residual < bound


def test_two_bits_at_twice_the_rank_leave_less_than_four_at_the_same_bytes() -> None:
    """TRAINING, *The codec*: a slowly falling spectrum, as updates have."""
    generator = torch.Generator().manual_seed(3)
    left, _ = torch.linalg.qr(torch.randn(96, 96, generator=generator, dtype=torch.float64))
    right, _ = torch.linalg.qr(torch.randn(96, 96, generator=generator, dtype=torch.float64))
    units = (left * (3e6 * 0.95 ** torch.arange(96)) @ right.T).long()
    left_over = {}
    for codec, rank in ((SlotKind.LOW_RANK_INT4, 12), (SlotKind.LOW_RANK_2BIT, 24)):
        slot, warm = _low_rank_slot(codec, (96, 96), rank, exponent=6), None
        for _ in range(3):
            compressed = codec_of(slot).compress(units, slot, warm, SEED)
            warm = compressed.warm
        left_over[codec] = float((units - compressed.units).double().norm() / units.double().norm())
    assert left_over[SlotKind.LOW_RANK_2BIT] < 0.95 * left_over[SlotKind.LOW_RANK_INT4] < 0.7


def test_sparse_sends_the_largest_of_each_block() -> None:
    shape = (96, 95)
    slot = _slot(CodecKind.SPARSE_2BIT, shape, exponent=10)
    units = _draw(shape, 1e5)
    sent = codec_of(slot).compress(units, slot, None, SEED).units.reshape(-1)
    for start in range(0, units.numel(), 4096):
        block, got = units.reshape(-1)[start : start + 4096], sent[start : start + 4096]
        kept = count_kept(block.numel())
        assert kept == -(-64 * block.numel() // 4096)
        assert set(got.nonzero().flatten().tolist()) == set(block.abs().topk(kept).indices.tolist())
        chosen = got != 0
        assert bool((got[chosen].sign() == block[chosen].sign()).all())
        error = (block[chosen] - got[chosen]).double().norm() / block[chosen].double().norm()
        assert float(error) < 0.15
    assert slot.num_bytes == 1 + 3 + (143 * 3 + 1) // 2 + 36


@pytest.mark.parametrize("rows", [128])
def test_sparse_takes_a_hundredth_and_less_of_fp32(rows: int) -> None:
    assert 4 * rows * 128 / _slot(CodecKind.SPARSE_2BIT, (rows, 128)).num_bytes > 140


@pytest.mark.parametrize(("kind", "times"), [(CodecKind.LOW_RANK_INT4, 12), (CodecKind.LOW_RANK_2BIT, 24)])
def test_error_feedback_drives_the_residual_down(kind: CodecKind, times: int) -> None:
    """Sending what was left again and again reaches the whole: no component is lost for good."""
    slot = _low_rank_slot(SlotKind[kind.name], (32, 24), 4, exponent=6)
    units = _draw((32, 24), 1e5)
    left, warm = units.clone(), None
    for _ in range(times):
        compressed = codec_of(slot).compress(left, slot, warm, SEED)
        left, warm = left - compressed.units, compressed.warm
    assert float(left.double().norm() / units.double().norm()) < 0.05


@pytest.mark.parametrize("kind", [CodecKind.DENSE_INT8, CodecKind.DENSE_INT4])
def test_dense_is_near_where_it_does_not_saturate(kind: CodecKind) -> None:
    slot = _slot(kind, (6, 50), exponent=4)
    units = _draw((6, 50), 1e3)
    sent = codec_of(slot).compress(units, slot, None, SEED).units
    limit = 127 if kind is CodecKind.DENSE_INT8 else 7
    step = units.abs().amax(dim=1, keepdim=True).double() / limit + 16
    assert bool(((units - sent).abs().double() <= step / 2 + 1).all())


def test_low_rank_only_where_it_saves_half() -> None:
    assert _slot(CodecKind.LOW_RANK_INT4, (96, 96), rank=16).kind is SlotKind.LOW_RANK_INT4
    assert _slot(CodecKind.LOW_RANK_INT4, (96, 96), rank=64).kind is SlotKind.INT8
    assert _slot(CodecKind.LOW_RANK_INT4, (96,), rank=1).kind is SlotKind.INT8
    assert _slot(CodecKind.LOW_RANK_INT4, (64, 2), rank=9).rank <= 2


def test_two_bits_and_sparse_only_where_they_save_half() -> None:
    assert _slot(CodecKind.LOW_RANK_2BIT, (96, 96), rank=64).kind is SlotKind.LOW_RANK_2BIT
    assert _slot(CodecKind.LOW_RANK_2BIT, (24, 40), rank=24).kind is SlotKind.LOW_RANK_2BIT
    assert _slot(CodecKind.LOW_RANK_2BIT, (3, 2), rank=24).kind is SlotKind.INT8
    assert _slot(CodecKind.SPARSE_2BIT, (96, 96)).kind is SlotKind.SPARSE_2BIT
    assert _slot(CodecKind.SPARSE_2BIT, (96,)).kind is SlotKind.INT8


@settings(deadline=None)
@given(st.sampled_from([LEVELS_2BIT, LEVELS_SPARSE]), st.lists(st.integers(0, 3)))
def test_pairs_of_bits_round_trip(levels: tuple[int, ...], picks: list[int]) -> None:
    codes = np.array([levels[pick] for pick in picks], dtype=np.int64)
    packed = pack_2bit(codes, levels)
    assert len(packed) == (len(picks) + 3) // 4
    assert unpack_2bit(packed, len(picks), levels).tolist() == codes.tolist()


@settings(deadline=None)
@given(st.lists(st.integers(-7, 7)))
def test_nibbles_round_trip(codes: list[int]) -> None:
    array = np.array(codes, dtype=np.int64)
    assert unpack_int4(pack_int4(array), len(codes)).tolist() == codes


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(list(CodecKind)),
    st.sampled_from([(3,), (5, 3), (24, 40), (65, 65)]),
    st.randoms(use_true_random=False),
)
def test_any_bytes_are_accepted_or_refused(kind: CodecKind, shape: tuple[int, ...], random: object) -> None:
    slot = _slot(kind, shape)
    body = random.randbytes(slot.num_bytes)  # type: ignore[attr-defined]
    body = bytes([random.choice((8, 30))]) + body[1:]  # type: ignore[attr-defined]
    try:
        codec_of(slot).validate(body, slot)
    except PayloadRefusedError:
        return
    units, peak = codec_of(slot).decode(body, slot)
    assert units.numel() == prod(shape)
    assert 0 <= peak <= 255 << 24


def _mutate(body: bytes, rng: np.random.Generator) -> bytes:
    """Return the body with up to three small changes: a bit, a byte, or two neighbours changing places."""
    changed = bytearray(body)
    for _ in range(rng.integers(1, 4)):
        at = int(rng.integers(len(body)))
        match rng.integers(4):
            case 0:
                changed[at] = int(rng.integers(256))
            case 1:
                changed[at - 1], changed[at] = changed[at], changed[at - 1]
            case _:
                changed[at] ^= 1 << int(rng.integers(8))
    return bytes(changed)


def _meaning(body: bytes, slot: Slot) -> tuple[list[int], int]:
    """Return what settlement takes from a valid body: all elements, and the largest scale."""
    units, peak = codec_of(slot).decode(body, slot)
    return units.reshape(-1).tolist(), peak


def _assert_that_bits_are_read(body: bytes, slot: Slot, bits: Iterable[int]) -> None:
    """Change each bit by itself: the body is then refused, or means something else."""
    meaning = _meaning(body, slot)
    for bit in bits:
        if bit >= 8 * len(body):
            continue
        changed = bytearray(body)
        changed[bit // 8] ^= 1 << bit % 8
        try:
            codec_of(slot).validate(bytes(changed), slot)
        except PayloadRefusedError:
            continue
        assert _meaning(bytes(changed), slot) != meaning, (bit, body.hex())


@pytest.mark.parametrize("slot", [slot for slot in SMALL_SLOTS if prod(slot.shape) > 2], ids=_name)
def test_bytes_near_valid_ones_are_refused_or_mean_what_the_spec_says(slot: Slot) -> None:
    """Every element of what is accepted is the one that the chain's reference reads; and many are accepted."""
    rng = np.random.default_rng(len(_name(slot)))
    num_accepted, num_mutants, head = 0, 150, 1 + count_scales(slot)
    for _ in range(num_mutants):
        valid = random_body(slot, rng, rest=0.3)
        body = _mutate(valid, rng)
        try:
            codec_of(slot).validate(body, slot)
        except PayloadRefusedError:
            continue
        num_accepted += 1
        elements, peak = _meaning(body, slot)
        looked_at = rng.choice(len(elements), min(25, len(elements)), replace=False)
        assert all(elements[at] == decode_element(read_element(body, slot, int(at))) for at in looked_at)
        assert 0 <= peak <= 255 << 24
        if slot.kind not in LOW_RANKS and body[:head] == valid[:head]:
            assert (elements == _meaning(valid, slot)[0]) == (body == valid)
    assert num_accepted > num_mutants // 8, num_accepted


@pytest.mark.parametrize("content", ["random", "some at rest", "zero", "rounds to zero"])
@pytest.mark.parametrize("slot", SMALL_SLOTS, ids=_name)
def test_no_bit_of_a_valid_body_is_free(slot: Slot, content: str) -> None:
    """Each changed bit is refused, or means something else: nobody can copy an update under another digest so."""
    rng = np.random.default_rng(1)
    rest = {"random": 0.0, "some at rest": 0.5}.get(content, 1.0)
    body = random_body(slot, rng, rest=rest, is_owed=content == "rounds to zero")
    assert len(body) == slot.num_bytes
    codec_of(slot).validate(body, slot)
    _assert_that_bits_are_read(body, slot, range(8 * len(body)))


@pytest.mark.parametrize("exponent", [0, 8, 24])
@pytest.mark.parametrize("content", ["zero", "ones", "tiny", "rows of all sizes", "one element", "huge"])
@pytest.mark.parametrize("slot", SMALL_SLOTS, ids=_name)
def test_encoders_write_canonical_bytes(slot: Slot, content: str, exponent: int) -> None:
    """A worker's own update is never refused, and no bit of it is free either."""
    slot = replace(slot, exponent=exponent)
    count = prod(slot.shape)
    units = _draw((count,), {"tiny": 0.1 * 2**exponent, "huge": 2e9}.get(content, 3.0 * 2**exponent))
    if content in ("zero", "one element"):
        units.zero_()
        units[count // 2 :][:1] = 0 if content == "zero" else -5 << exponent
    elif content == "ones":
        units.fill_(1)
    elif content == "rows of all sizes":
        units >>= torch.arange(count) * 30 // max(1, count)
    compressed = codec_of(slot).compress(units.reshape(slot.shape), slot, None, SEED)
    codec_of(slot).validate(compressed.body, slot)
    _assert_that_bits_are_read(compressed.body, slot, [*range(96), *range(4 * slot.num_bytes, 8 * slot.num_bytes, 5)])


@pytest.mark.parametrize("kind", DENSE)
def test_a_dense_update_that_rounds_to_zero_still_lowers_the_exponent(kind: SlotKind) -> None:
    """Its largest scale is one step, in the first row alone; an update of zeros has none."""
    slot = make_slot(kind, (3, 4), exponent=10)
    small = codec_of(slot).compress(torch.full((3, 4), 3), slot, None, SEED)
    assert small.body[:4] == bytes((10, 1, 0, 0))
    assert _meaning(small.body, slot) == ([0] * 12, 1 << 10)
    nothing = codec_of(slot).compress(torch.zeros((3, 4), dtype=torch.int64), slot, None, SEED)
    assert nothing.body[:4] == bytes(4)


@pytest.mark.parametrize(
    ("slot", "change", "reason"),
    [
        (make_slot(SlotKind.INT8, (2, 3)), {1: 0}, "scales"),
        (make_slot(SlotKind.INT8, (2, 3)), {3: 0, 4: 0, 5: 0}, "scales"),
        (make_slot(SlotKind.INT4, (2, 3)), {2: 0}, "scales"),
        (make_slot(SlotKind.LOW_RANK_INT4, (6, 4), rank=2), {1: 0}, "scales"),
        (make_slot(SlotKind.LOW_RANK_INT4, (6, 4), rank=2), dict.fromkeys(range(3, 9), 0x88), "scales"),
        (make_slot(SlotKind.LOW_RANK_INT4, (6, 4), rank=2), dict.fromkeys(range(9, 13), 0x88), "scales"),
        (make_slot(SlotKind.LOW_RANK_2BIT, (6, 4), rank=2), {2: 0}, "scales"),
        (make_slot(SlotKind.SPARSE_2BIT, (65, 65)), {1: 0}, "scales"),
        (make_slot(SlotKind.VECTOR, (24, 25)), {2: 0}, "scales"),
        (make_slot(SlotKind.VECTOR, (24, 25)), {51: 0, 52: 0}, "scales"),
        (make_slot(SlotKind.VECTOR, (1, 577)), {51: 11}, "last nibble"),
    ],
    ids=lambda value: _name(value) if isinstance(value, Slot) else str(value),
)
def test_invalid_bytes_that_nobody_reads(slot: Slot, change: dict[int, int], reason: str) -> None:
    body = bytearray(random_body(slot, np.random.default_rng(3), rest=0.0))
    codec_of(slot).validate(bytes(body), slot)
    for at, value in change.items():
        body[at] = value
    with pytest.raises(PayloadRefusedError, match=reason):
        codec_of(slot).validate(bytes(body), slot)


@pytest.mark.parametrize("kind", list(SlotKind), ids=lambda kind: kind.name)
def test_payload_bytes_are_those_of_every_run_before(kind: SlotKind) -> None:
    """Golden: another digest is another protocol, and members of a run that is under way would refuse each other."""
    shape = {SlotKind.SPARSE_2BIT: (65, 65), SlotKind.VECTOR: (25, 25)}.get(kind, (5, 3))
    rows, columns = torch.arange(shape[0])[:, None], torch.arange(shape[1])[None, :]
    if kind in LOW_RANKS:
        slot = make_slot(kind, shape, rank=1, exponent=4)
        units = (rows % 2 * 4 - 1) * (3 - columns % 3 * 2) * 3000
    else:
        slot = make_slot(kind, shape, exponent=4)
        units = (rows * 7919 + columns * 104729 + 12345) * 48271 % 65537 - 32768
    body = codec_of(slot).compress(units, slot, None, SEED).body
    assert blake3(body).hexdigest() == GOLDEN["encoded"][kind.name], body.hex()
    if kind in LOW_RANKS:
        slot = make_slot(kind, shape, rank=3, exponent=4)
        sides = [np.arange(3 * side).reshape(side, 3) * 11 for side in shape]
        codes = [side % 15 - 7 if kind is SlotKind.LOW_RANK_INT4 else side % 4 * 2 - 3 for side in sides]
        body = pack_body(slot, 5, (200, 9, 31), *codes)
    codec_of(slot).validate(body, slot)
    elements, peak = _meaning(body, slot)
    decoded = np.array([*elements, peak], dtype="<i8").tobytes()
    assert blake3(decoded).hexdigest() == GOLDEN["decoded"][kind.name], elements[:8]


@pytest.mark.parametrize(
    ("kind", "shape", "position", "value", "reason"),
    [
        (CodecKind.LOW_RANK_INT4, (24, 40), 0, 25, "exponent"),
        (CodecKind.LOW_RANK_INT4, (24, 40), 10, 0x08, "codes"),
        (CodecKind.LOW_RANK_INT4, (24, 40), 10, 0x80, "codes"),
        (CodecKind.LOW_RANK_INT4, (24, 40), -1, 0x08, "codes"),
        (CodecKind.LOW_RANK_2BIT, (24, 40), 0, 25, "exponent"),
        (CodecKind.LOW_RANK_2BIT, (23, 41), -1, 0xFF, "padding"),
        (CodecKind.LOW_RANK_2BIT, (23, 41), 34, 0x40, "padding"),
        (CodecKind.SPARSE_2BIT, (96, 95), 0, 25, "exponent"),
        (CodecKind.SPARSE_2BIT, (96, 95), 4, 0xFF, "positions"),
        (CodecKind.SPARSE_2BIT, (96, 95), 218, 0x0F, "positions"),
        (CodecKind.SPARSE_2BIT, (96, 95), 218, 0x1F, "padding"),
        (CodecKind.SPARSE_2BIT, (96, 95), -1, 0xFF, "padding"),
        (CodecKind.VECTOR, (50, 49), 0, 25, "exponent"),
        (CodecKind.VECTOR, (50, 49), -1, 0x10, "padding"),
        (CodecKind.DENSE_INT8, (3, 5), 0, 25, "exponent"),
        (CodecKind.DENSE_INT8, (3, 5), -1, 0x80, "codes"),
        (CodecKind.DENSE_INT4, (3, 5), 5, 0x00, "codes"),
        (CodecKind.DENSE_INT4, (3, 5), -1, 0x18, "padding"),
    ],
)
def test_invalid_body(kind: CodecKind, shape: tuple[int, ...], position: int, value: int, reason: str) -> None:
    slot = _slot(kind, shape, rank=5 if kind is CodecKind.LOW_RANK_2BIT else 4)
    body = bytearray(codec_of(slot).compress(_draw(shape, 1e4), slot, None, SEED).body)
    codec_of(slot).validate(bytes(body), slot)
    body[position] = value
    with pytest.raises(PayloadRefusedError, match=reason):
        codec_of(slot).validate(bytes(body), slot)


def test_invalid_exact_value_without_opposite() -> None:
    slot = _slot(CodecKind.NONE, (2,))
    with pytest.raises(PayloadRefusedError, match="values"):
        codec_of(slot).validate(b"\x00\x00\x00\x80" + bytes(4), slot)


def test_words_are_those_of_the_spec() -> None:
    assert blake3(WORDS).hexdigest() == "304f8eb3c167e10c823db73a46a8a50bb55d1351cc84b392c2ca419972b87199"
    assert len(WORDS) == NUM_WORDS * WORD_ELEMENTS
    assert not any(WORDS[:WORD_ELEMENTS])
    assert 0x80 not in WORDS


@pytest.mark.parametrize("shape", [(48, 48), (50, 49), (130, 96), (24, 25)])
def test_vector_leaves_little_more_than_the_least_of_noise(shape: tuple[int, int]) -> None:
    """No code of this length leaves less than 0.40 of normal values."""
    slot = _slot(CodecKind.VECTOR, shape, exponent=12)
    units = _draw(shape, 1e6)
    left = (units - codec_of(slot).compress(units, slot, None, SEED).units).double()
    assert 8 * slot.num_bytes / prod(shape) < 0.71
    assert 0.38 < float(left.square().sum() / units.double().square().sum()) < 0.47


def test_vector_leaves_no_block_worse_than_unsent() -> None:
    slot = _slot(CodecKind.VECTOR, (4, 576), exponent=4)
    units = torch.zeros(slot.shape, dtype=torch.int64)
    units[1, 7], units[2, ::50], units[3] = 10**6, 3 * 10**4, 9
    left = units - codec_of(slot).compress(units, slot, None, SEED).units
    assert bool((left.double().square().sum(dim=1) <= units.double().square().sum(dim=1)).all())
    assert not left[0].any()


def test_vector_finds_the_cheapest_of_all_paths() -> None:
    """Three groups, so all 4,096 paths can be tried."""
    slot = _slot(CodecKind.VECTOR, (2, 9), exponent=0)
    slot = replace(slot, kind=SlotKind.VECTOR, num_bytes=count_slot_bytes(SlotKind.VECTOR, (2, 9), 0))
    units = _draw((2, 9), 300.0)
    found = codec_of(slot).compress(units, slot, None, SEED)
    scale = found.body[1]
    bodies = [bytes((0, scale, path & 255, path >> 8)) for path in range(16**3)]
    errors = [int((units - codec_of(slot).decode(body, slot)[0]).square().sum()) for body in bodies]
    assert int((units - found.units).square().sum()) == min(errors)


def test_vector_reads_three_nibbles_of_its_own_block() -> None:
    """Nibbles 5, B, 7, 0 at the start of block 1: nothing of block 0 is in their words."""
    slot = _slot(CodecKind.VECTOR, (60, 24), exponent=3)
    body = bytearray(slot.num_bytes)
    body[0], body[1 + 1] = 3, 200
    body[1 + 3 + 47], body[1 + 3 + 48], body[1 + 3 + 49] = 0xFF, 0xB5, 0x07
    decoded, peak = codec_of(slot).decode(bytes(body), slot)
    words = torch.from_numpy(np.frombuffer(WORDS, np.int8).astype(np.int64)).view(-1, 6)
    assert not decoded.reshape(-1)[:576].any()
    assert torch.equal(decoded.reshape(-1)[576:600].view(4, 6), words[[0x005, 0x05B, 0x1B7, 0x170]] * 200 << 3)
    assert peak == 200 << 3


def test_vector_sends_a_table_with_a_row_a_token_in_low_rank() -> None:
    assert codec_of_tensor(CodecKind.VECTOR, (256, 64), 256) is CodecKind.LOW_RANK_2BIT
    assert codec_of_tensor(CodecKind.VECTOR, (64, 256), 256) is CodecKind.VECTOR
    assert codec_of_tensor(CodecKind.DENSE_INT8, (256, 64), 256) is CodecKind.DENSE_INT8
