"""Codecs: what is kept as sent is what a reader decodes; any bytes are accepted or refused, never worse (CASES 15)."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from training.core.codecs.integers import pack_int4, unpack_int4
from training.core.codecs.protocol import Slot, SlotKind
from training.core.codecs.registry import codec_of, plan_slot
from training.core.errors import PayloadRefusedError
from training.core.recipe import CodecKind

SHAPES = [(), (0,), (1,), (7,), (64,), (0, 5), (5, 0), (1, 1), (3, 2), (24, 40), (65, 33)]
SEED = bytes(32)


def _slot(kind: CodecKind, shape: tuple[int, ...], rank: int = 4, exponent: int = 8) -> Slot:
    return plan_slot(kind, "tensor", shape, rank=rank, exponent=exponent)


def _low_rank_slot(shape: tuple[int, int], rank: int, exponent: int = 8) -> Slot:
    """Force low rank, whatever it saves."""
    from training.core.codecs.low_rank import count_low_rank_bytes

    num_bytes = count_low_rank_bytes(shape, rank)
    return Slot(
        name="tensor", kind=SlotKind.LOW_RANK_INT4, shape=shape, rank=rank, exponent=exponent, num_bytes=num_bytes
    )


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


@pytest.mark.parametrize("rank", [1, 3, 8])
@pytest.mark.parametrize("kind", ["zero", "rank one", "dependent columns", "one element", "random"])
def test_low_rank_is_finite_for_degenerate_matrices(rank: int, kind: str) -> None:
    slot = _low_rank_slot((24, 8), rank)
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


@pytest.mark.parametrize("old_rank", [2, 5, 9])
def test_low_rank_starts_warm_from_another_rank(old_rank: int) -> None:
    units = _draw((40, 24), 1e5)
    warm = codec_of(_low_rank_slot((40, 24), old_rank)).compress(units, _low_rank_slot((40, 24), old_rank), None, SEED)
    slot = _low_rank_slot((40, 24), 5)
    compressed = codec_of(slot).compress(units, slot, warm.warm, SEED)
    assert float((units - compressed.units).double().norm()) < float(units.double().norm())


def test_low_rank_keeps_most_of_a_low_rank_matrix() -> None:
    units = (_draw((48, 4), 300.0, 1) @ _draw((32, 4), 300.0, 2).T).long()
    slot = _low_rank_slot((48, 32), 8, exponent=5)
    compressed = codec_of(slot).compress(units, slot, None, SEED)
    residual = float((units - compressed.units).double().norm() / units.double().norm())
    assert residual < 0.1


def test_error_feedback_drives_the_residual_down() -> None:
    """Sending what was left again and again reaches the whole: no component is lost for good."""
    slot = _low_rank_slot((32, 24), 4, exponent=6)
    units = _draw((32, 24), 1e5)
    left, warm = units.clone(), None
    for _ in range(12):
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


@settings(deadline=None)
@given(st.lists(st.integers(-7, 7)))
def test_nibbles_round_trip(codes: list[int]) -> None:
    array = np.array(codes, dtype=np.int64)
    assert unpack_int4(pack_int4(array), len(codes)).tolist() == codes


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(list(CodecKind)), st.sampled_from([(3,), (5, 3), (24, 40)]), st.randoms(use_true_random=False))
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
        (CodecKind.DENSE_INT8, (3, 5), 0, 25, "exponent"),
        (CodecKind.DENSE_INT8, (3, 5), -1, 0x80, "codes"),
        (CodecKind.DENSE_INT4, (3, 5), 5, 0x00, "codes"),
        (CodecKind.DENSE_INT4, (3, 5), -1, 0x18, "padding"),
    ],
)
def test_invalid_body(kind: CodecKind, shape: tuple[int, ...], position: int, value: int, reason: str) -> None:
    slot = _slot(kind, shape)
    body = bytearray(codec_of(slot).compress(_draw(shape, 1e4), slot, None, SEED).body)
    codec_of(slot).validate(bytes(body), slot)
    body[position] = value
    with pytest.raises(PayloadRefusedError, match=reason):
        codec_of(slot).validate(bytes(body), slot)


def test_invalid_exact_value_without_opposite() -> None:
    slot = _slot(CodecKind.NONE, (2,))
    with pytest.raises(PayloadRefusedError, match="values"):
        codec_of(slot).validate(b"\x00\x00\x00\x80" + bytes(4), slot)
