"""Codecs: what is kept as sent is what a reader decodes; any bytes are accepted or refused, never worse (CASES 15)."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
import pytest
import torch
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from training.core.codecs.integers import LEVELS_2BIT, LEVELS_SPARSE, pack_2bit, pack_int4, unpack_2bit, unpack_int4
from training.core.codecs.protocol import Slot, SlotKind
from training.core.codecs.registry import codec_of, codec_of_tensor, count_slot_bytes, plan_slot
from training.core.codecs.sparse import count_kept
from training.core.codecs.words import NUM_WORDS, WORD_ELEMENTS, WORDS
from training.core.errors import PayloadRefusedError
from training.core.recipe import CodecKind

SHAPES = [(), (0,), (1,), (7,), (64,), (0, 5), (5, 0), (1, 1), (3, 2), (24, 40), (65, 33), (96, 95)]
SEED = bytes(32)


def _slot(kind: CodecKind, shape: tuple[int, ...], rank: int = 4, exponent: int = 8) -> Slot:
    return plan_slot(kind, "tensor", shape, rank=rank, exponent=exponent)


LOW_RANKS = [SlotKind.LOW_RANK_INT4, SlotKind.LOW_RANK_2BIT]


def _low_rank_slot(kind: SlotKind, shape: tuple[int, int], rank: int, exponent: int = 8) -> Slot:
    """Force low rank, whatever it saves."""
    num_bytes = count_slot_bytes(kind, shape, rank)
    return Slot(name="tensor", kind=kind, shape=shape, rank=rank, exponent=exponent, num_bytes=num_bytes)


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
