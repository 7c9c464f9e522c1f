"""All randomness of a run, by name, from the run's seed (SPEC, *Randomness*).

BLAKE3 in extendable mode under the tag ``RANDOM``: the same bytes on any machine, in any order of asking.
Invariant: two different purposes or arguments never share a stream, because every part is length-prefixed.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from da.core.hashing import Tag, compute_stream_hash


def derive_bytes(seed: int, purpose: str, *parts: bytes, num_bytes: int = 32) -> bytes:
    """Return ``num_bytes`` of the stream named by (seed, purpose, parts)."""
    chunks = [seed.to_bytes(8, "big")]
    for part in (purpose.encode(), *parts):
        chunks += [len(part).to_bytes(4, "big"), part]
    return compute_stream_hash(Tag.RANDOM, chunks, num_bytes=num_bytes)


def derive_uniform_int32(seed: int, purpose: str, *parts: bytes, count: int) -> npt.NDArray[np.int32]:
    """Return ``count`` integers, uniform over all of int32."""
    return np.frombuffer(derive_bytes(seed, purpose, *parts, num_bytes=4 * count), dtype="<i4").astype(np.int32)


def derive_integer(seed: int, purpose: str, *parts: bytes) -> int:
    """Return an integer, uniform over 0..2^128-1."""
    return int.from_bytes(derive_bytes(seed, purpose, *parts, num_bytes=16), "big")
