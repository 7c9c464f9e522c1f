"""Which codec carries which tensor under a recipe's choice."""

from __future__ import annotations

from math import prod

from training.core.codecs.dense import Dense, Exact, count_dense_bytes
from training.core.codecs.low_rank import LowRankInt4, count_low_rank_bytes
from training.core.codecs.protocol import Slot, SlotKind, TensorCodec
from training.core.recipe import CodecKind

_CODECS: dict[SlotKind, TensorCodec] = {
    SlotKind.INT32: Exact(),
    SlotKind.INT8: Dense(is_int4=False),
    SlotKind.INT4: Dense(is_int4=True),
    SlotKind.LOW_RANK_INT4: LowRankInt4(),
}


def codec_of(slot: Slot) -> TensorCodec:
    """Return the codec of a slot."""
    return _CODECS[slot.kind]


def plan_slot(kind: CodecKind, name: str, shape: tuple[int, ...], *, rank: int, exponent: int) -> Slot:
    """Return how a tensor travels; low rank only where it takes at most half of dense int8."""
    slot_kind = _choose(kind, shape, rank)
    used_rank = min(rank, *shape) if slot_kind is SlotKind.LOW_RANK_INT4 else 0
    if slot_kind is SlotKind.LOW_RANK_INT4:
        num_bytes = count_low_rank_bytes(shape, used_rank)
    elif slot_kind is SlotKind.INT32:
        num_bytes = 4 * prod(shape)
    else:
        num_bytes = count_dense_bytes(shape, is_int4=slot_kind is SlotKind.INT4)
    return Slot(name=name, kind=slot_kind, shape=shape, rank=used_rank, exponent=exponent, num_bytes=num_bytes)


def _choose(kind: CodecKind, shape: tuple[int, ...], rank: int) -> SlotKind:
    if kind is CodecKind.NONE:
        return SlotKind.INT32
    if kind is CodecKind.DENSE_INT4:
        return SlotKind.INT4
    is_worth_it = (
        kind is CodecKind.LOW_RANK_INT4
        and len(shape) == 2
        and prod(shape) > 0
        and 2 * count_low_rank_bytes(shape, min(rank, *shape)) <= count_dense_bytes(shape, is_int4=False)
    )
    return SlotKind.LOW_RANK_INT4 if is_worth_it else SlotKind.INT8
