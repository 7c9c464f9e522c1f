"""Randomness of a run: named hashes of the block's seed, so that nobody chooses it.

The digest is ``compute_hash(Tag.RANDOM, seed, name, numbers...)`` with an 8-byte name and u64 numbers.
"""

from __future__ import annotations

from da.core.hashing import Tag, compute_hash

_DATA = b"rounddat"
_CHECKPOINT = b"ckptpart"
_KEY = b"sealdkey"


def compute_data_seed(seed: bytes, run: int, t: int) -> bytes:
    """Return the 32 bytes from which round t's data order follows."""
    return compute_hash(Tag.RANDOM, seed, _DATA, run.to_bytes(8, "big"), t.to_bytes(8, "big"))


def compute_first_uploader(seed: bytes, run: int, version: int, num_members: int) -> int:
    """Return the index of the member that is asked for part 0 of a checkpoint; the others follow in turn."""
    digest = compute_hash(Tag.RANDOM, seed, _CHECKPOINT, run.to_bytes(8, "big"), version.to_bytes(8, "big"))
    return int.from_bytes(digest[:8], "big") % num_members


def compute_key_commitment(genesis_hash: bytes, run: int, t: int, sender: bytes, key: bytes) -> bytes:
    """Return what a sealed commit carries as its digest, for the key that is revealed later."""
    return compute_hash(Tag.RANDOM, genesis_hash, _KEY, run.to_bytes(8, "big"), t.to_bytes(8, "big"), sender, key)
