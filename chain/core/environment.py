"""What a block is executed under, and what a call comes to: shared by the executor and the EVM."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from chain.core.contracts.staking.keys import NEWEST_RULES
from chain.core.genesis import ChainParameters
from chain.core.native import NativeContract
from chain.core.records import AccessList, Log
from chain.core.types import Address, Height

Contracts = Mapping[Address, NativeContract]
"""The system contracts by address."""

Watch = Callable[[], None]
"""Called now and then while a call runs outside any block; raises where it is to be given up."""


ReadBlockHash = Callable[[int], bytes | None]
"""Height -> hash of a recent block, None where it isn't known."""


def know_no_block(height: int) -> bytes | None:
    """Return None: where no blocks are kept."""
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockEnvironment:
    """What is known before the first transaction of a block runs."""

    height: Height
    """Of the block that is executed; NUMBER."""
    time_seconds: int
    """BFT time, whole Unix seconds; TIMESTAMP of users' contracts, never looked at by ours."""
    proposer: Address
    """Gets the priority fees; COINBASE."""
    block_seed: bytes
    """32 bytes: the app hash before this block; PREVRANDAO."""
    parameters: ChainParameters
    """Of the chain."""
    rules: int = NEWEST_RULES
    """Version of the rules in force (chain/SPEC.md, Upgrades)."""
    read_block_hash: ReadBlockHash = know_no_block
    """Of blocks whose hash the state doesn't hold yet; the same on all nodes (``chain.core.block_hashes``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallResult:
    """What a call did."""

    status: int
    """1 succeeded, 0 failed."""
    output: bytes
    """Return data (the code, of a creation), or the ABI-encoded error of a revert."""
    gas_used: int
    """With the intrinsic gas, after refunds: what is paid for."""
    logs: tuple[Log, ...]
    """Empty when it failed."""
    error: str
    """One readable line when it failed, else empty."""
    is_revert: bool
    """True when a contract reverted (JSON-RPC error 3), False for out of gas and the like."""
    gas_peak: int = 0
    """Gas that was used before refunds; 0 where there were none."""
    evm_work: int = 0
    """What of it counts on the EVM's meter of the block: no intrinsic gas, and of a write only its work."""
    access_list: AccessList = ()
    """What the EVM touched beyond sender, target and precompiles; empty for native calls."""
