"""Members that lie, for simulations: what they send instead of what they learned (SPEC, *Aggregation*).

An attacker knows everything: the honest updates of its round, the codec and the exponents.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from training.attack_kind import AttackKind
from training.core.codecs.integers import MAX_EXPONENT
from training.core.codecs.registry import codec_of
from training.core.payload import PayloadPlan, decode_payload

FLIP_FACTOR = 10
"""How much larger a flipped update is than the one it turns around."""

HIDDEN_DEVIATIONS = 1.5
"""How many standard deviations ALIE stays away from the mean (A Little Is Enough, arXiv 1902.06156)."""

EXTRA_EXPONENT = 4
"""Ten times an update needs scales beyond 255: the attacker counts them in larger units, as validation allows."""


def craft_payload(kind: AttackKind, plan: PayloadPlan, honest: Sequence[bytes], own: bytes) -> bytes:
    """Return a valid payload that does harm, given the honest ones of the round and the attacker's own work."""
    if kind is AttackKind.COPY:
        return honest[0]
    decoded = [{name: each.units for name, each in decode_payload(payload, plan).items()} for payload in honest]
    mine = {name: each.units for name, each in decode_payload(own, plan).items()}
    chunks = [plan.header]
    for slot in plan.slots:
        units = _craft_units(kind, slot.name, decoded, mine)
        if kind is AttackKind.SIGN_FLIP:
            slot = replace(slot, exponent=min(slot.exponent + EXTRA_EXPONENT, MAX_EXPONENT))
        chunks.append(codec_of(slot).compress(units, slot, None, bytes(32)).body)
    return b"".join(chunks)


def _craft_units(
    kind: AttackKind, name: str, honest: Sequence[Mapping[str, torch.Tensor]], own: Mapping[str, torch.Tensor]
) -> torch.Tensor:
    if kind is AttackKind.SIGN_FLIP:
        return -FLIP_FACTOR * own[name]
    if kind is AttackKind.ZERO:
        return torch.zeros_like(own[name])
    values = torch.stack([each[name] for each in honest]).double()
    return (values.mean(dim=0) - HIDDEN_DEVIATIONS * values.std(dim=0, correction=0)).round().long()
