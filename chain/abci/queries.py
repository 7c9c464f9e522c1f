"""The queries that the application answers, all of the newest durable block (SPEC, *ABCI*, has the table).

Nothing is changed here, and nothing that a client sent makes it raise.
"""

from __future__ import annotations

import msgpack

from chain.abci import abci_pb2 as pb
from chain.abci.answers import refuse_query
from chain.abci.newest_block import NewestBlock
from chain.abci.recent_trees import RecentTrees
from chain.core.queue import TransactionQueue
from chain.core.types import Address

MAX_KEYS = 257
"""An account and as many slots as eth_getProof takes."""
MAX_KEY_BYTES = 500
_ADDRESS_BYTES = 20


def answer_query(request: pb.RequestQuery, newest: NewestBlock, queue: TransactionQueue) -> pb.ResponseQuery:
    """Answer one of the paths ``/pending_nonce``, ``/queue``, ``/proofs`` and ``/state``, or say which there are."""
    height = newest.committed.height
    if request.path == "/proofs":
        return _answer_proofs(request, newest.trees, height)
    answer = pb.ResponseQuery(height=height, key=request.data)
    if request.path == "/pending_nonce":
        if len(request.data) != _ADDRESS_BYTES:
            return refuse_query(f"address has {len(request.data)} bytes, expected {_ADDRESS_BYTES}")
        address = Address(request.data)
        nonce = queue.compute_next_nonce(address, newest.get_account(address)[0])
        answer.value = nonce.to_bytes(8, "big")
    elif request.path == "/queue":
        answer.value = len(queue).to_bytes(8, "big")
    elif request.path == "/state":
        if not 0 < len(request.data) <= MAX_KEY_BYTES:
            return refuse_query(f"state key has {len(request.data)} bytes, expected 1 to {MAX_KEY_BYTES}")
        answer.value = newest.state.get(request.data) or b""
        if request.prove:
            proof = newest.tree.prove(request.data)
            data = msgpack.packb([list(proof.siblings), list(proof.other_leaf or ())])
            answer.proof_ops.ops.add(type="archipelago:smt", key=request.data, data=data)
    else:
        return refuse_query(f"unknown path {request.path!r}, known: /pending_nonce, /state, /proofs, /queue")
    return answer


def _answer_proofs(request: pb.RequestQuery, trees: RecentTrees, newest: int) -> pb.ResponseQuery:
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
