"""What the chain remembers of blocks and transactions, for JSON-RPC (Ethereum's yellow paper, 4.3, 4.4).

Written in the same LMDB transaction as the state, so that once ``eth_blockNumber`` says h everything
of h is there.  ``chain.store`` encodes these records; ``chain.rpc`` only reads them.
"""

from __future__ import annotations

from dataclasses import dataclass

from chain.core.types import Address, Amount, Hash, Height, Nonce

AccessList = tuple[tuple[Address, tuple[bytes, ...]], ...]
"""(address, its 32-byte slots), in the order of the transaction (EIP-2930)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """One event."""

    address: Address
    """The contract that emitted it."""
    topics: tuple[bytes, ...]
    """At most four words of 32 bytes; the first is the event's signature hash."""
    data: bytes
    """ABI-encoded fields that are not indexed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """A decoded, signature-checked Ethereum transaction."""

    hash: Hash
    """keccak256 of ``raw``."""
    raw: bytes
    """Exactly the bytes of the CometBFT transaction."""
    type: int
    """0 legacy (EIP-155 only), 1 (EIP-2930) or 2 (EIP-1559)."""
    chain_id: int
    """EVM chain id."""
    sender: Address
    """Recovered from the signature."""
    nonce: Nonce
    """Expected to equal the sender's count when executed."""
    to: Address | None
    """None for a creation."""
    value: Amount
    """Wei moved to ``to``."""
    data: bytes
    """Calldata."""
    gas_limit: int
    """Most gas the sender pays for."""
    max_fee: Amount
    """Wei a gas; types 0 and 1: gas price."""
    max_priority_fee: Amount
    """Wei a gas; types 0 and 1: gas price."""
    v: int
    """Signature: legacy v, or y parity."""
    r: int
    """Signature r."""
    s: int
    """Signature s, at most half the group order."""
    access_list: AccessList = ()
    """What is warm from the start, and paid for (EIP-2930)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What a transaction did."""

    transaction: Hash
    """Hash of the transaction."""
    status: int
    """1 succeeded, 0 failed (nonce used and fee paid all the same)."""
    gas_used: int
    """Of this transaction."""
    cumulative_gas_used: int
    """In the block, up to and with this one."""
    effective_gas_price: Amount
    """Wei a gas that was paid."""
    logs: tuple[Log, ...]
    """Empty when the transaction failed."""
    output: bytes
    """Return data; on failure the revert data."""
    error: str
    """One readable line when it failed, else empty; no part of what is agreed."""
    log_index: int
    """Block-global index of the first log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """An Ethereum-shaped header over a CometBFT block."""

    height: Height
    """Number."""
    hash: Hash
    """keccak256 of the RLP header, so that hashes chain."""
    parent_hash: Hash
    """Hash of block height-1; zero at genesis."""
    time_seconds: int
    """BFT time, whole Unix seconds."""
    app_hash: bytes
    """SMT root after this block, 32 bytes; shown as stateRoot."""
    proposer: Address
    """20-byte CometBFT address; shown as miner."""
    gas_limit: int
    """Block gas limit."""
    gas_used: int
    """Sum over its transactions."""
    base_fee: Amount
    """Wei a gas."""
    logs_bloom: bytes
    """256 bytes."""
    transactions_root: bytes
    """32 bytes: keccak256 over the transaction hashes, in order (not a Patricia trie)."""
    receipts_root: bytes
    """32 bytes, likewise over encoded receipts."""
    cometbft_hash: bytes
    """CometBFT's own block hash, 32 bytes."""
    transactions: tuple[Hash, ...]
    """Hashes, in order; those refused before execution are left out."""
    size_bytes: int
    """Of its transactions as they stand in a block's RLP (``blocks.compute_body_bytes``)."""
