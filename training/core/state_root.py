"""Hashing of the agreed state: entries of tensors, and the root over them (SPEC, *Agreed state*)."""

from __future__ import annotations

import numpy as np
import torch

from da.core.hashing import HASH_BYTES, Tag, compute_hash
from da.core.merkle import PAYLOAD_LEAF_BYTES, compute_root, compute_top, seal_root


def compute_entry(name: str, fraction_bits: int, theta: torch.Tensor, momentum: torch.Tensor) -> bytes:
    """Return the hash of one tensor's entry: name, shape, s, root of theta, root of u.

    A worker that holds only some of the tensors can compute its entries alone.
    """
    encoded = name.encode()
    return compute_hash(
        Tag.TENSOR,
        len(encoded).to_bytes(2, "big"),
        encoded,
        len(theta.shape).to_bytes(1, "big"),
        *(size.to_bytes(8, "big") for size in theta.shape),
        fraction_bits.to_bytes(1, "big"),
        compute_root(encode_integers(theta), leaf_bytes=PAYLOAD_LEAF_BYTES),
        compute_root(encode_integers(momentum), leaf_bytes=PAYLOAD_LEAF_BYTES),
    )


def compute_state_root(header: bytes, entries: list[bytes]) -> bytes:
    """Return the root over the header leaf and the tensors' entries in order of name."""
    nodes = [compute_hash(Tag.STATE, header), *entries]
    return bytes(seal_root(compute_top(nodes), size_bytes=HASH_BYTES * len(nodes), leaf_bytes=HASH_BYTES))


def encode_integers(tensor: torch.Tensor) -> bytes:
    """Return an int32 tensor's elements, row-major, little-endian."""
    return tensor.contiguous().numpy().astype("<i4", copy=False).tobytes()


def decode_integers(data: bytes | memoryview, shape: tuple[int, ...]) -> torch.Tensor:
    """Return the int32 tensor that `encode_integers` wrote; the caller has checked the length."""
    return torch.from_numpy(np.frombuffer(data, dtype="<i4").astype(np.int32).reshape(shape))
