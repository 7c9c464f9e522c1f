"""Is it our chain that answers?  Asked before anything is believed, and before the faucet sends.

Another program may have bound the port that was free a moment ago; a second devnet even speaks the same
language.  A chain id is new at each reset, and the node's `eth_chainId` is computed from it.
"""

from __future__ import annotations

from chain.home import compute_evm_chain_id
from contracts.bindings.client import ChainClient
from localnet.core.errors import StrangerAnswers


def check_is_ours(client: ChainClient, url: str, chain_id: str) -> None:
    """Raise StrangerAnswers when the node at ``url`` serves another chain; BindingError while none answers."""
    expected, got = compute_evm_chain_id(chain_id), client.chain_id()
    if got != expected:
        raise StrangerAnswers(url, chain_id, expected, got)
