"""Methods that clients of other nodes know, why they are not here, and what to ask in their place."""

from __future__ import annotations

_KEYS = "this node holds no keys: sign in the client and send it with eth_sendRawTransaction"
_POOL = "what waits is not shown; eth_getTransactionCount(address, 'pending') counts an account's"
_BY_NAME = {
    "eth_simulateV1": "calls are simulated one at a time: eth_call takes state and block overrides",
    "eth_callMany": "calls are simulated one at a time: eth_call takes state and block overrides, a batch 200 calls",
    "eth_sendTransaction": _KEYS,
    "eth_sign": _KEYS,
    "eth_signTransaction": _KEYS,
    "eth_signTypedData": _KEYS,
    "eth_signTypedData_v4": _KEYS,
    "eth_blobBaseFee": "there are no blobs on this chain",
    "eth_getBlobSidecars": "there are no blobs on this chain",
    "eth_coinbase": "a block's `miner` is the operator of the validator that proposed it",
    "eth_mining": "validators propose in turn; eth_syncing says whether this node has caught up",
    "eth_hashrate": "validators propose in turn; eth_syncing says whether this node has caught up",
    "eth_getWork": "validators propose in turn, there is no work to prove",
    "eth_submitWork": "validators propose in turn, there is no work to prove",
    "eth_protocolVersion": "peers speak CometBFT's protocol; web3_clientVersion names this software",
    "eth_newPendingTransactionFilter": _POOL,
    "debug_traceCall": "only executed transactions are traced: debug_traceTransaction",
    "debug_traceBlockByNumber": "transactions are traced one at a time: debug_traceTransaction",
    "debug_traceBlockByHash": "transactions are traced one at a time: debug_traceTransaction",
}
_BY_NAMESPACE = {
    "txpool": _POOL,
    "personal": _KEYS,
    "trace": "transactions are traced one at a time: debug_traceTransaction, tracer callTracer",
    "engine": "CometBFT decides the blocks",
    "admin": "an operator's questions are `chain-node status` and `chain-node doctor`",
    "miner": "validators propose in turn: chain/SPEC.md, Validators",
    "anvil": "this is no simulated chain: time and balances can't be set; eth_call takes overrides",
    "evm": "this is no simulated chain: time and balances can't be set; eth_call takes overrides",
    "hardhat": "this is no simulated chain: time and balances can't be set; eth_call takes overrides",
}


def explain_absence(method: str) -> str:
    """Return why a method isn't here and what there is instead, empty for a name that nobody knows."""
    return _BY_NAME.get(method) or _BY_NAMESPACE.get(method.partition("_")[0], "")
