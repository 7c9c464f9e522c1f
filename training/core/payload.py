"""Payloads: one worker's update of one fragment as canonical bytes (SPEC, *Payloads*).

The length follows from the plan alone.  ``validate`` is total and uses integers only: any bytes either fit
or are refused, and every worker decides alike.  Layout, little-endian codes behind a 16-byte header:
magic "APPL", format u8, codec u8, fragment u16, rank u16, u16 zero, round u32 (big-endian), then for each
tensor of the fragment, by name, what its `TensorCodec` writes.
"""

from __future__ import annotations

from dataclasses import dataclass

from training.core.aggregation import Contribution
from training.core.canonical import CanonicalState
from training.core.codecs.protocol import Slot, SlotKind
from training.core.codecs.registry import codec_of, codec_of_tensor, plan_slot
from training.core.errors import PayloadRefusedError
from training.core.layout import build_layout
from training.core.recipe import MAX_RANK, CodecKind, Recipe, StartKind
from training.core.schedule import fragment_of_round, is_flush_round

HEADER_BYTES = 16
"""Bytes before the first tensor."""

_MAGIC = b"APPL"
_FORMAT = 1
_CODEC_NUMBERS = {
    CodecKind.NONE: 0,
    CodecKind.DENSE_INT8: 1,
    CodecKind.DENSE_INT4: 2,
    CodecKind.LOW_RANK_INT4: 3,
    CodecKind.LOW_RANK_2BIT: 4,
    CodecKind.SPARSE_2BIT: 5,
    CodecKind.VECTOR: 6,
}
_LEAVES_MUCH = frozenset({CodecKind.LOW_RANK_INT4, CodecKind.LOW_RANK_2BIT, CodecKind.SPARSE_2BIT, CodecKind.VECTOR})
"""Codecs whose last exchange goes dense."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadPlan:
    """What a payload of one round looks like."""

    header: bytes
    """Its first 16 bytes."""
    slots: tuple[Slot, ...]
    """Its tensors, by name."""

    @property
    def num_bytes(self) -> int:
        """Return the length."""
        return HEADER_BYTES + sum(slot.num_bytes for slot in self.slots)


def codec_of_round(recipe: Recipe, round_index: int) -> CodecKind:
    """Return the recipe's codec, or int8 where a low-rank, sparse or vector run flushes what its weights have.

    Nothing follows a flush that could carry what these leave behind, so the last exchange of each tensor is whole
    (SPEC, *Decisions*).  A residual beside the weights (``rewind``) was never trained on as a whole: added at once it
    took SparseLoCo from 2.82 to 5.28 nats a byte, so it goes on in portions.
    """
    is_in_weights = recipe.rounds.start is not StartKind.REWIND
    if recipe.codec.kind in _LEAVES_MUCH and is_in_weights and is_flush_round(recipe.rounds, round_index):
        return CodecKind.DENSE_INT8
    return recipe.codec.kind


def plan_payload(recipe: Recipe, state: CanonicalState, round_index: int, *, rank: int) -> PayloadPlan:
    """Return the plan of round ``round_index``; ``state`` gives the exponents (its agreed values at the base).

    ``rank`` is the chain's for the round: 0 until one was proposed, and then the recipe's counts; at most 4,096.
    """
    rank = min(rank or recipe.codec.rank, MAX_RANK)
    layout = build_layout(recipe)
    fragment = fragment_of_round(round_index, recipe.rounds.num_fragments)
    kind = codec_of_round(recipe, round_index)
    header = b"".join(
        (
            _MAGIC,
            bytes((_FORMAT, _CODEC_NUMBERS[kind])),
            fragment.to_bytes(2, "big"),
            rank.to_bytes(2, "big"),
            bytes(2),
            round_index.to_bytes(4, "big"),
        )
    )
    slots = tuple(
        plan_slot(
            codec_of_tensor(kind, tensor.shape, recipe.model.vocabulary),
            tensor.name,
            tensor.shape,
            rank=rank,
            exponent=state.exponents[tensor.name],
        )
        for tensor in layout.tensors
        if tensor.fragment == fragment
    )
    return PayloadPlan(header=header, slots=slots)


def validate(payload: bytes, plan: PayloadPlan) -> None:
    """Accept or refuse any bytes, in integers. Raises `PayloadRefusedError` and nothing else."""
    if len(payload) != plan.num_bytes:
        raise PayloadRefusedError("length in bytes", len(payload), plan.num_bytes)
    if payload[:HEADER_BYTES] != plan.header:
        raise PayloadRefusedError("header", payload[:HEADER_BYTES].hex(), plan.header.hex())
    for slot, body in _bodies(payload, plan):
        codec_of(slot).validate(body, slot)


def decode_payload(payload: bytes, plan: PayloadPlan) -> dict[str, Contribution]:
    """Return the exact contribution to each tensor. Raises `PayloadRefusedError`."""
    validate(payload, plan)
    return {slot.name: _read_body(body, slot) for slot, body in _bodies(payload, plan)}


def read_contribution(payload: bytes, plan: PayloadPlan, slot: Slot) -> Contribution:
    """Return the exact contribution of a valid payload to one tensor."""
    at = HEADER_BYTES
    for each in plan.slots:
        if each is slot:
            break
        at += each.num_bytes
    return _read_body(payload[at : at + slot.num_bytes], slot)


def _read_body(body: bytes, slot: Slot) -> Contribution:
    units, peak = codec_of(slot).decode(body, slot)
    return Contribution(units=units, peak=peak, exponent=0 if slot.kind is SlotKind.INT32 else body[0])


def _bodies(payload: bytes, plan: PayloadPlan) -> list[tuple[Slot, bytes]]:
    bodies, at = [], HEADER_BYTES
    for slot in plan.slots:
        bodies.append((slot, payload[at : at + slot.num_bytes]))
        at += slot.num_bytes
    return bodies
