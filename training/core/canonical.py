"""The agreed state of a run (interface; the body follows)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from training.core.recipe import Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class CanonicalState:
    """theta and outer momentum in fixed point, with all that the next round depends on; immutable by contract."""

    theta: Mapping[str, torch.Tensor]
    """int32 on the CPU by tensor name: value = integer * 2^-s, s from ``build_layout(recipe)``."""
    momentum: Mapping[str, torch.Tensor]
    """u: int32, same scale."""
    exponents: Mapping[str, int]
    """x of each tensor: a scale counts grid units of 2^x, 0..24."""
    ranks: Mapping[str, int]
    """Rank at each tensor's last exchange; 0 before it and where not low rank."""
    local_steps: int
    """H of the last settled round that counted something."""
    step: int
    """Global step at which the next round begins."""

    def root(self) -> bytes:
        """Return the 32-byte root R."""
        raise NotImplementedError

    def encode_part(self, part_index: int, num_parts: int) -> bytes:
        """Return part ``part_index`` of ``num_parts``: checkable against the root on its own."""
        raise NotImplementedError


def create_genesis(recipe: Recipe) -> CanonicalState:
    """Return version 0: the same bits on any machine."""
    raise NotImplementedError


def verify_part(recipe: Recipe, part: bytes, part_index: int, num_parts: int, root: bytes) -> None:
    """Check one part of a checkpoint against the root. Raises `StatePartError`, `RootMismatchError`."""
    raise NotImplementedError


def decode_parts(recipe: Recipe, parts: Sequence[bytes]) -> CanonicalState:
    """Join all parts, in order. Raises `StatePartError`; compare ``.root()`` with the chain's afterwards."""
    raise NotImplementedError


def dequantise(recipe: Recipe, state: CanonicalState) -> dict[str, torch.Tensor]:
    """Return theta as float32 tensors, for evaluation and export."""
    raise NotImplementedError
