"""Keys, signing by eth-account (the oracle), and a small contract for the executor."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from eth_account import Account

from chain.core.executor import BlockEnvironment, Contracts
from chain.core.genesis import Genesis, parse_genesis, process_genesis
from chain.core.native import BlockContext, CallContext, NativeContract, Revert
from chain.core.records import Log
from chain.core.state import Overlay
from chain.core.types import Height

sys.path.insert(0, str(Path(__file__).parent))

from signers import BOB, COUNTER, EVM_CHAIN_ID, PROPOSER, Signer


@pytest.fixture(scope="session")
def alice() -> Signer:
    """A funded key."""
    return Signer(b"\x01" * 32)


@pytest.fixture(scope="session")
def set_code(alice: Signer) -> bytes:
    """A signed transaction of type 4, as a wallet makes it (EIP-7702)."""
    authorization = Account.sign_authorization({"chainId": EVM_CHAIN_ID, "address": bytes(BOB), "nonce": 1}, alice.key)
    return alice.raw(0, type=4, authorizationList=[authorization], gas=100_000)


@pytest.fixture(scope="session")
def carol() -> Signer:
    """A second funded key."""
    return Signer(b"\x02" * 32)


@pytest.fixture(scope="session")
def app_state(alice: Signer, carol: Signer) -> dict[str, Any]:
    """The app_state of a genesis with both keys funded."""
    balance = str(10**24)
    return {
        "evmChainId": EVM_CHAIN_ID,
        "alloc": {f"0x{alice.address.hex()}": balance, f"0x{carol.address.hex()}": balance},
    }


@pytest.fixture
def genesis(app_state: dict[str, Any]) -> Genesis:
    """The parsed app_state."""
    return parse_genesis("test-chain", json.dumps(app_state).encode())


@pytest.fixture
def state(genesis: Genesis) -> Overlay:
    """An overlay at genesis."""
    overlay = Overlay()
    process_genesis(overlay, genesis)
    return overlay


@pytest.fixture
def make_environment(genesis: Genesis) -> Callable[[int], BlockEnvironment]:
    """Make the environment of a block."""

    def make(height: int) -> BlockEnvironment:
        return BlockEnvironment(
            height=Height(height),
            time_seconds=1_700_000_000 + height,
            proposer=PROPOSER,
            block_seed=bytes(32),
            parameters=genesis.parameters,
        )

    return make


def _process_counter(context: CallContext, data: bytes) -> bytes:
    """Count calls; ``00`` reverts after writing, ``01`` burns all gas, ``02`` breaks an invariant."""
    context.meter.charge(5_000)
    count = int.from_bytes(context.state.get(b"x/count") or b"", "big") + 1
    context.state.set(b"x/count", count.to_bytes(4, "big"))
    context.logs.append(Log(address=COUNTER, topics=(bytes(31) + b"\x01",), data=data))
    if data[:1] == b"\x00":
        raise Revert(b"\xde\xad", "Unwanted(1, 2)")
    if data[:1] == b"\x01":
        context.meter.charge(10**12)
    if data[:1] == b"\x02":
        raise RuntimeError("broken invariant")
    return count.to_bytes(32, "big")


def _process_tick(context: BlockContext) -> None:
    if context.height == 7:
        context.logs.append(Log(address=COUNTER, topics=(bytes(32),), data=b"tick"))


@pytest.fixture(scope="session")
def contracts() -> Contracts:
    """One contract that counts."""
    contract = NativeContract(
        name="Counter", address=COUNTER, process_call=_process_counter, process_block_end=_process_tick
    )
    return {COUNTER: contract}
