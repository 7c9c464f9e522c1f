"""Which codec carries which tensor under a recipe's choice."""

from __future__ import annotations

from math import prod

from training.core.codecs.code_family import CodeFamily, Int4Codes, TwoBitCodes, round_to_2bit, round_to_int4
from training.core.codecs.dense import Dense, Exact, count_dense_bytes
from training.core.codecs.low_rank import LowRank, count_low_rank_bytes
from training.core.codecs.protocol import Slot, SlotKind, TensorCodec
from training.core.codecs.sparse import Sparse, count_sparse_bytes
from training.core.codecs.vector import Vector, count_vector_bytes
from training.core.recipe import CodecKind

_FAMILIES: dict[SlotKind, CodeFamily] = {
    SlotKind.LOW_RANK_INT4: Int4Codes(),
    SlotKind.LOW_RANK_2BIT: TwoBitCodes(),
}

_NEAREST = {SlotKind.LOW_RANK_INT4: round_to_int4, SlotKind.LOW_RANK_2BIT: round_to_2bit}

_CODECS: dict[SlotKind, TensorCodec] = {
    SlotKind.INT32: Exact(),
    SlotKind.INT8: Dense(is_int4=False),
    SlotKind.INT4: Dense(is_int4=True),
    SlotKind.SPARSE_2BIT: Sparse(),
    SlotKind.VECTOR: Vector(),
    **{kind: LowRank(family, _NEAREST[kind]) for kind, family in _FAMILIES.items()},
}

_KIND_OF = {
    CodecKind.NONE: SlotKind.INT32,
    CodecKind.DENSE_INT8: SlotKind.INT8,
    CodecKind.DENSE_INT4: SlotKind.INT4,
    CodecKind.LOW_RANK_INT4: SlotKind.LOW_RANK_INT4,
    CodecKind.LOW_RANK_2BIT: SlotKind.LOW_RANK_2BIT,
    CodecKind.SPARSE_2BIT: SlotKind.SPARSE_2BIT,
    CodecKind.VECTOR: SlotKind.VECTOR,
}


def codec_of(slot: Slot) -> TensorCodec:
    """Return the codec of a slot."""
    return _CODECS[slot.kind]


def codec_of_tensor(kind: CodecKind, shape: tuple[int, ...], vocabulary: int) -> CodecKind:
    """Return what carries a tensor: under ``vector`` a table with a row a token goes in low rank, two bits.

    Few tokens are frequent, so such an update has few directions; words leave four times as much of it behind
    (SPEC, *Measurements*).
    """
    is_table = len(shape) == 2 and shape[0] == vocabulary
    return CodecKind.LOW_RANK_2BIT if kind is CodecKind.VECTOR and is_table else kind


def plan_slot(kind: CodecKind, name: str, shape: tuple[int, ...], *, rank: int, exponent: int) -> Slot:
    """Return how a tensor travels; all but the dense ones only for matrices where they take at most half of int8."""
    wanted = _KIND_OF[kind]
    used_rank = min(rank, *shape) if wanted in _FAMILIES and len(shape) == 2 else 0
    num_bytes = count_slot_bytes(wanted, shape, used_rank)
    is_partial = wanted in _FAMILIES or wanted in (SlotKind.SPARSE_2BIT, SlotKind.VECTOR)
    if is_partial and (num_bytes == 0 or 2 * num_bytes > count_dense_bytes(shape, is_int4=False)):
        wanted, used_rank = SlotKind.INT8, 0
        num_bytes = count_slot_bytes(wanted, shape, 0)
    return Slot(name=name, kind=wanted, shape=shape, rank=used_rank, exponent=exponent, num_bytes=num_bytes)


def count_slot_bytes(kind: SlotKind, shape: tuple[int, ...], rank: int) -> int:
    """Return the length of a body of this kind; 0 where a tensor of this shape never travels so."""
    is_matrix = len(shape) == 2 and prod(shape) > 0
    if kind in _FAMILIES:
        return count_low_rank_bytes(_FAMILIES[kind], shape, rank) if is_matrix else 0
    if kind is SlotKind.SPARSE_2BIT:
        return count_sparse_bytes(prod(shape)) if is_matrix else 0
    if kind is SlotKind.VECTOR:
        return count_vector_bytes(prod(shape)) if is_matrix else 0
    if kind is SlotKind.INT32:
        return 4 * prod(shape)
    return count_dense_bytes(shape, is_int4=kind is SlotKind.INT4)
