"""A query for proofs: many keys, all against the tree of one block."""

from __future__ import annotations

import msgpack

from chain.abci import abci_pb2 as pb
from chain.abci.answers import refuse_query
from chain.abci.recent_trees import RecentTrees

MAX_KEYS = 257
"""An account and as many slots as eth_getProof takes."""
MAX_KEY_BYTES = 500


def answer_proofs(request: pb.RequestQuery, trees: RecentTrees, newest: int) -> pb.ResponseQuery:
    """Return msgpack [[siblings, other leaf], ...] of the keys in ``data`` (msgpack), after block ``height``."""
    try:
        keys = msgpack.unpackb(request.data)
    except (ValueError, msgpack.UnpackException, RecursionError):
        return refuse_query("data is no msgpack")
    if not isinstance(keys, list) or not 0 < len(keys) <= MAX_KEYS:
        return refuse_query(f"data is no list of 1 to {MAX_KEYS} state keys")
    if not all(isinstance(key, bytes) and 0 < len(key) <= MAX_KEY_BYTES for key in keys):
        return refuse_query(f"a state key has 1 to {MAX_KEY_BYTES} bytes")
    height = request.height or newest
    if trees.first_height is None:
        return refuse_query("this node has no state yet; next: ask another, or wait")
    tree = trees.get(height)
    if tree is None:
        return refuse_query(
            f"the proofs of block {height} are not kept, those of {trees.first_height} to {newest} are; next: ask for"
            " latest"
        )
    proofs = [tree.prove(key) for key in keys]
    value = msgpack.packb([[list(proof.siblings), list(proof.other_leaf or ())] for proof in proofs])
    return pb.ResponseQuery(height=height, value=value)
