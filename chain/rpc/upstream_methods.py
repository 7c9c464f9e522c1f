"""Methods that CometBFT answers, through the event loop; a light client may ask it through us."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from chain.rpc.faults import InvalidParams
from chain.rpc.proofs import Read, get_proof
from chain.rpc.upstream import Upstream
from chain.rpc.values import Params, hex_data, parse_data, quantity

UpstreamMethod = Callable[[Upstream, Read, Params], Awaitable[Any]]
"""Runs on the event loop; what it needs of the chain's records it reads in a worker thread."""


async def send_raw_transaction(upstream: Upstream, read: Read, params: Params) -> str:
    """eth_sendRawTransaction."""
    params.at_most(1)
    return hex_data(await upstream.send_transaction(parse_data(params.raw(0, "transaction"), "transaction")))


async def get_pending_count(upstream: Upstream, read: Read, params: Params) -> str:
    """eth_getTransactionCount with ``pending``."""
    return quantity(await upstream.get_pending_nonce(params.address(0, "address")))


async def get_syncing(upstream: Upstream, read: Read, params: Params) -> Any:
    """eth_syncing."""
    state = await upstream.get_sync_state()
    if not state.is_catching_up:
        return False
    return {
        "startingBlock": quantity(0),
        "currentBlock": quantity(state.height),
        "highestBlock": quantity(state.height),
    }


async def count_peers(upstream: Upstream, read: Read, params: Params) -> str:
    """net_peerCount."""
    return quantity((await upstream.get_sync_state()).num_peers)


async def ask_consensus(upstream: Upstream, read: Read, params: Params) -> Any:
    """archipelago_consensus: CometBFT's own answers, for light clients that know only this address."""
    params.at_most(2)
    wanted = params.raw(1, "params", {})
    if not isinstance(wanted, dict):
        raise InvalidParams("params of archipelago_consensus is no object")
    return await upstream.ask_consensus(str(params.raw(0, "method")), wanted)


UPSTREAM_METHODS: Mapping[str, UpstreamMethod] = {
    "eth_sendRawTransaction": send_raw_transaction,
    "eth_syncing": get_syncing,
    "net_peerCount": count_peers,
    "eth_getProof": get_proof,
    "archipelago_consensus": ask_consensus,
}
"""By name: need CometBFT."""
PROOF_METHODS = ("eth_getProof", "archipelago_consensus")
"""Of them: many questions each, or long answers."""
