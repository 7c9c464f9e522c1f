"""The chain's hashes, and every domain tag it uses."""

from __future__ import annotations

import hashlib

from chain.core.types import Hash

try:  # the same function, 0.5 us a hash; a transfer takes four
    from sha3 import keccak_256 as _keccak
except ImportError:  # 3.7 us, where there is no wheel
    from eth_hash.backends.pycryptodome import preimage as _keccak

GENESIS_TAG = b"archipelago/genesis/1\x00"
"""Before the CometBFT chain id and the canonical app_state."""
TRANSACTIONS_TAG = b"archipelago/transactions/1\x00"
"""Before the hashes of a block's transactions."""
RECEIPTS_TAG = b"archipelago/receipts/1\x00"
"""Before the hashes of a block's receipts."""
SNAPSHOT_TAG = b"archipelago/snapshot/1\x00"
"""Before a snapshot's metadata."""
ARCHIVED_ROUND_TAG = b"archipelago/archived-round/1\x00"
"""Before the records of a round that leaves the state."""
ACCUMULATOR_NODE_TAG = b"archipelago/accumulator-node/1\x00"
"""Before the two children of a node."""
ACCUMULATOR_ROOT_TAG = b"archipelago/accumulator-root/1\x00"
"""Before the number of leaves and the peaks."""
VALIDATOR_TAG = b"archipelago/validator/1\x00"
"""Before the genesis hash and the operator that a validator key names."""


def keccak256(data: bytes) -> Hash:
    """Return Ethereum's hash."""
    digest: Hash = _keccak(data).digest()
    return digest


def sha256(data: bytes) -> bytes:
    """Return CometBFT's hash."""
    return hashlib.sha256(data).digest()
