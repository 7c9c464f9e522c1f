"""Hashes of recent blocks in the state, so that BLOCKHASH is agreed, proven, and the same over replay and state sync.

| key | value |
|---|---|
| ``h/`` slot u8 | height u64, hash: slot = height mod 256 |
| ``h/next`` | height u64: the first block whose hash is not in the state |

A block's hash names its app hash, so it can't be in its own state.  It is written at the start of the next block *with
transactions*, together with those of the blocks without any that lie between; until then a node keeps it aside
(``chain.store``), and a snapshot carries it.  Blocks without transactions write nothing, so an idle chain keeps its app
hash.  Invariant: the state holds the hashes of blocks next-256 .. next-1, as far back as rules 3 were in force.
"""

from __future__ import annotations

from chain.core.environment import ReadBlockHash
from chain.core.state import Base, Overlay

BLOCK_HASH_RULES = 3
"""The version of the rules from which on hashes are kept."""
NUM_RECENT_BLOCKS = 256
"""That BLOCKHASH reaches back (yellow paper, 9.4.1)."""

_PREFIX = b"h/"
_NEXT_KEY = _PREFIX + b"next"
_HEIGHT_BYTES = 8


def initialise_block_hashes(state: Overlay, rules: int) -> None:
    """Begin with block 0, where the rules say so from genesis on."""
    if rules >= BLOCK_HASH_RULES:
        state.set(_NEXT_KEY, bytes(_HEIGHT_BYTES))


def get_next_height(state: Base) -> int | None:
    """Return the first height whose hash the state lacks, None where it holds none."""
    value = state.get(_NEXT_KEY)
    return None if value is None else int.from_bytes(value, "big")


def get_stored_hash(state: Base, height: int) -> bytes | None:
    """Return a block's hash if the state holds it."""
    value = state.get(_PREFIX + bytes([height % NUM_RECENT_BLOCKS]))
    if value is None or int.from_bytes(value[:_HEIGHT_BYTES], "big") != height:
        return None
    return value[_HEIGHT_BYTES:]


def compute_first_missing(state: Base, height: int) -> int:
    """Return the first block whose hash block ``height`` would write."""
    start = get_next_height(state)
    return max(height - NUM_RECENT_BLOCKS, 0, height - 1 if start is None else start)


def process_block_hashes(state: Overlay, height: int, read_block_hash: ReadBlockHash) -> None:
    """Write what the state lacks, before the first transaction of block ``height`` runs."""
    for each in range(compute_first_missing(state, height), height):
        found = read_block_hash(each)
        if found is not None:
            state.set(_PREFIX + bytes([each % NUM_RECENT_BLOCKS]), each.to_bytes(_HEIGHT_BYTES, "big") + found)
    state.set(_NEXT_KEY, height.to_bytes(_HEIGHT_BYTES, "big"))


def find_block_hash(state: Base, height: int, wanted: int, read_block_hash: ReadBlockHash) -> bytes:
    """Return the hash of block ``wanted`` as code in block ``height`` sees it; empty where it is out of reach.

    Within a block the state holds all there is.  Outside any block (eth_call) the newest ones are read aside.
    """
    if not max(height - NUM_RECENT_BLOCKS, 0) <= wanted < height:
        return b""
    start = get_next_height(state)
    if start is not None and wanted >= start:
        return read_block_hash(wanted) or b""
    return get_stored_hash(state, wanted) or b""
