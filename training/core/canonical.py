"""The agreed state of a run: integers only, one root, the same on every machine (SPEC, *Agreed state*).

theta and the outer momentum u are int32 fixed point.  The root is a Merkle tree over the tensor names: each
tensor contributes the roots of two trees of 1 KiB leaves (256 integers), and one header leaf carries what
else the next round depends on.  A state is never changed; a new one shares the tensors, and the cached
subtree roots, that a round left alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from training.core.codecs.integers import MAX_EXPONENT
from training.core.codecs.registry import codec_of_tensor
from training.core.errors import RootMismatchError, StatePartError
from training.core.fixed_point import from_units
from training.core.layout import TensorLayout, build_layout
from training.core.parts import PartContent, decode_part, encode_part
from training.core.randomness import derive_uniform_int32
from training.core.recipe import MAX_RANK, CodecKind, Recipe
from training.core.state_root import compute_entry, compute_state_root

FORMAT_VERSION = 1
"""First two bytes of the header."""

HEADER_FIXED_BYTES = 18
"""Header before the tensors: format, number of tensors, H, step."""

HEADER_TENSOR_BYTES = 3
"""Header for each tensor: exponent, rank."""

FIRST_STEP_BITS = {
    CodecKind.LOW_RANK_INT4: 17,
    CodecKind.LOW_RANK_2BIT: 15,
    CodecKind.SPARSE_2BIT: 13,
    CodecKind.VECTOR: 17,
    CodecKind.DENSE_INT8: 18,
    CodecKind.DENSE_INT4: 15,
    CodecKind.NONE: 64,
}
"""At genesis a scale counts in units of 2^-bits: about what the first updates of a small model need.

Measured on the demo recipe (SPEC, *Measurements*); from the second exchange on the exponents follow the run.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CanonicalState:
    """theta and outer momentum in fixed point, with all that the next round depends on; immutable by contract."""

    theta: Mapping[str, torch.Tensor]
    """int32 on the CPU by tensor name: value = integer * 2^-s."""
    momentum: Mapping[str, torch.Tensor]
    """u: int32, same scale."""
    fraction_bits: Mapping[str, int]
    """s of each tensor, fixed at genesis."""
    exponents: Mapping[str, int]
    """x of each tensor: a scale counts 2^x grid units, 0..24."""
    ranks: Mapping[str, int]
    """Rank at each tensor's last exchange; 0 before it and where not low rank."""
    local_steps: int
    """H of the last round that counted something."""
    step: int
    """Global step at which the round after that begins."""
    entry_cache: dict[str, bytes] = field(default_factory=dict, compare=False, repr=False)
    """Hashes of the tensors' entries that have been computed; a memo, no part of the value."""

    def root(self) -> bytes:
        """Return the 32-byte root R."""
        return compute_state_root(self.header(), self.entries())

    def header(self) -> bytes:
        """Return the header leaf: format u16, tensors u32, H u32, step u64, then x u8 and rank u16 a tensor."""
        names = sorted(self.theta)
        return b"".join(
            (
                FORMAT_VERSION.to_bytes(2, "big"),
                len(names).to_bytes(4, "big"),
                self.local_steps.to_bytes(4, "big"),
                self.step.to_bytes(8, "big"),
                *(self.exponents[name].to_bytes(1, "big") + self.ranks[name].to_bytes(2, "big") for name in names),
            )
        )

    def entries(self) -> list[bytes]:
        """Return the hash of every tensor's entry, sorted by name."""
        return [self._entry(name) for name in sorted(self.theta)]

    def encode_part(self, part_index: int, num_parts: int) -> bytes:
        """Return part ``part_index`` of ``num_parts``: it can be checked against the root on its own."""
        content = PartContent(
            header=self.header(), entries=tuple(self.entries()), theta=self.theta, momentum=self.momentum
        )
        return encode_part(content, part_index, num_parts)

    def _entry(self, name: str) -> bytes:
        known = self.entry_cache.get(name)
        if known is None:
            known = compute_entry(name, self.fraction_bits[name], self.theta[name], self.momentum[name])
            self.entry_cache[name] = known
        return known


def create_genesis(recipe: Recipe) -> CanonicalState:
    """Return version 0: drawn in integers from the recipe's seed, so the same bits on any machine."""
    layout = build_layout(recipe)
    kind, vocabulary = recipe.codec.kind, recipe.model.vocabulary
    first_bits = {
        tensor.name: FIRST_STEP_BITS[codec_of_tensor(kind, tensor.shape, vocabulary)] for tensor in layout.tensors
    }
    return CanonicalState(
        theta={tensor.name: _draw_start(recipe, tensor) for tensor in layout.tensors},
        momentum={tensor.name: torch.zeros(tensor.shape, dtype=torch.int32) for tensor in layout.tensors},
        fraction_bits={tensor.name: tensor.fraction_bits for tensor in layout.tensors},
        exponents={tensor.name: max(0, tensor.fraction_bits - first_bits[tensor.name]) for tensor in layout.tensors},
        ranks={tensor.name: 0 for tensor in layout.tensors},
        local_steps=recipe.rounds.local_steps,
        step=0,
    )


def replace_theta(state: CanonicalState, theta: Mapping[str, torch.Tensor]) -> CanonicalState:
    """Return a state with other weights in some tensors, as a run that begins from a file has at version 0."""
    return replace(state, theta={**state.theta, **theta}, entry_cache={})


def verify_part(recipe: Recipe, part: bytes, part_index: int, num_parts: int, root: bytes) -> None:
    """Check one part of a checkpoint against the agreed root.

    Raises `StatePartError` where its form is wrong or its bytes are not what its own hashes say, and
    `RootMismatchError` where it belongs to another state.
    """
    content = decode_part(build_layout(recipe), _header_bytes(recipe), part, part_index, num_parts)
    got = compute_state_root(content.header, list(content.entries))
    if got != root:
        raise RootMismatchError(root, got, f"part {part_index} of {num_parts}")


def decode_parts(recipe: Recipe, parts: Sequence[bytes]) -> CanonicalState:
    """Join all parts, in order; compare ``.root()`` with the chain's afterwards.

    Raises `StatePartError`.
    """
    layout = build_layout(recipe)
    if not parts:
        raise StatePartError("number of parts", 0, "at least 1")
    contents = [decode_part(layout, _header_bytes(recipe), part, index, len(parts)) for index, part in enumerate(parts)]
    first = contents[0]
    for index, content in enumerate(contents):
        if (content.header, content.entries) != (first.header, first.entries):
            raise StatePartError("state", f"part {index} is of another state", "one state in all parts")
    exponents, ranks = _decode_header(recipe, first.header)
    return CanonicalState(
        theta={name: tensor for content in contents for name, tensor in content.theta.items()},
        momentum={name: tensor for content in contents for name, tensor in content.momentum.items()},
        fraction_bits={tensor.name: tensor.fraction_bits for tensor in layout.tensors},
        exponents=exponents,
        ranks=ranks,
        local_steps=int.from_bytes(first.header[6:10], "big"),
        step=int.from_bytes(first.header[10:18], "big"),
        entry_cache=dict(zip((tensor.name for tensor in layout.tensors), first.entries, strict=True)),
    )


def check_root(state: CanonicalState, root: bytes, what: str) -> None:
    """Refuse a state that is not the agreed one, before any inner step is done on it.

    Raises `RootMismatchError`.
    """
    got = state.root()
    if got != root:
        raise RootMismatchError(root, got, what)


def dequantise(state: CanonicalState) -> dict[str, torch.Tensor]:
    """Return theta as float32 tensors, for evaluation and export."""
    return {name: from_units(theta, state.fraction_bits[name]) for name, theta in sorted(state.theta.items())}


def _draw_start(recipe: Recipe, tensor: TensorLayout) -> torch.Tensor:
    """Return a tensor's first value: ``(word * limit) >> 31`` for uniform int32 words."""
    if tensor.limit_units == 0:
        return torch.full(tensor.shape, tensor.constant_units, dtype=torch.int32)
    words = derive_uniform_int32(recipe.seed, "genesis", tensor.name.encode(), count=tensor.num_elements)
    units = (words.astype(np.int64) * tensor.limit_units) >> 31
    return torch.from_numpy(units.astype(np.int32).reshape(tensor.shape))


def _header_bytes(recipe: Recipe) -> int:
    return HEADER_FIXED_BYTES + HEADER_TENSOR_BYTES * len(build_layout(recipe).tensors)


def _decode_header(recipe: Recipe, header: bytes) -> tuple[dict[str, int], dict[str, int]]:
    """Return exponents and ranks; the length has been checked. Raises `StatePartError`."""
    layout = build_layout(recipe)
    start = FORMAT_VERSION.to_bytes(2, "big") + len(layout.tensors).to_bytes(4, "big")
    if header[: len(start)] != start:
        raise StatePartError("header", header[: len(start)].hex(), start.hex())
    exponents, ranks = {}, {}
    for index, tensor in enumerate(layout.tensors):
        at = HEADER_FIXED_BYTES + HEADER_TENSOR_BYTES * index
        exponents[tensor.name] = header[at]
        ranks[tensor.name] = int.from_bytes(header[at + 1 : at + 3], "big")
        if exponents[tensor.name] > MAX_EXPONENT or ranks[tensor.name] > MAX_RANK:
            got = (exponents[tensor.name], ranks[tensor.name])
            raise StatePartError(f"exponent and rank of {tensor.name}", got, f"at most {(MAX_EXPONENT, MAX_RANK)}")
    return exponents, ranks
