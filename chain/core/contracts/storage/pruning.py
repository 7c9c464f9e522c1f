"""Records of blobs that nobody needs any more leave the state (case 29).

Each blob has one entry in an index by height.  When it comes up, a blob whose release is long past goes with its
leases; any other is looked at again later.  Invariant: a blob that is pinned, leased or challenged is never removed.
"""

from __future__ import annotations

from chain.core.contracts.staking.keys import get_rules
from chain.core.contracts.storage.blobs import compute_release_height, get_blob
from chain.core.contracts.storage.keys import blob_key, challenge_key, due_blob_key, lease_key
from chain.core.contracts.storage.leases import get_lease_expiries
from chain.core.state import Overlay
from chain.core.turn import Turn
from da.core.scheme import MAX_SEATS

KEPT_BLOCKS = 1_200
"""How long after its release a record stays, so that stores and clients can still read why: six minutes."""
MAX_BLOBS_A_BLOCK = 128
"""Twice the updates of a full round."""
RULES = 2
"""The version of the rules from which on records leave."""

_DUE_PREFIX = b"s/y"
_HEIGHT_BYTES = 8


def process_pruning_block_end(turn: Turn) -> None:
    """Look at the blobs whose entries have come up."""
    state, height = turn.state, int(turn.height)
    if get_rules(state) < RULES:
        return
    stop = _DUE_PREFIX + (height + 1).to_bytes(_HEIGHT_BYTES, "big")
    due = [key for _, (key, _) in zip(range(MAX_BLOBS_A_BLOCK), state.iterate(_DUE_PREFIX, stop), strict=False)]
    for key in due:
        state.delete(key)
        blob_id = key[len(_DUE_PREFIX) + _HEIGHT_BYTES :]
        blob = get_blob(state, blob_id)
        if blob is None:
            continue
        is_needed = blob.num_pins > 0 or _is_challenged(state, blob_id)
        again = height + KEPT_BLOCKS if is_needed else compute_release_height(blob) + KEPT_BLOCKS
        if again > height:
            state.set(due_blob_key(again, blob_id), b"")
            continue
        for owner, _ in get_lease_expiries(state, blob_id):
            state.delete(lease_key(blob_id, owner))
        state.delete(blob_key(blob_id))


def _is_challenged(state: Overlay, blob_id: bytes) -> bool:
    start, stop = challenge_key(blob_id, 0), challenge_key(blob_id, MAX_SEATS)
    return any(True for _ in state.iterate(start, stop))
