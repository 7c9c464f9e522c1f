"""Genesis: parsed strictly, hashed canonically."""

from __future__ import annotations

import json
from typing import Any

import pytest

from chain.core import accounts
from chain.core.errors import InvalidGenesis
from chain.core.genesis import get_parameters, get_supply, parse_genesis, process_genesis
from chain.core.hashing import GENESIS_TAG, sha256
from chain.core.state import Overlay
from chain.core.types import Address
from chain.system import process_system_genesis

ADDRESS = "0x" + "1a" * 20


def _parse(chain_id: str = "c", **fields: Any) -> Any:
    return parse_genesis(chain_id, json.dumps({"evmChainId": 7, **fields}).encode())


def test_hash_is_tagged_and_canonical() -> None:
    got = parse_genesis("c-1", b'{ "evmChainId" : 7 , "alloc": {} }').parameters
    assert got.genesis_hash == sha256(GENESIS_TAG + b"\x00\x03c-1" + b'{"alloc":{},"evmChainId":7}')
    assert got.genesis_hash == parse_genesis("c-1", b'{"alloc":{},"evmChainId":7}').parameters.genesis_hash
    assert got.genesis_hash != parse_genesis("c-2", b'{"alloc":{},"evmChainId":7}').parameters.genesis_hash
    assert got.genesis_hash.hex() == "7267919f660b3b56322a70faa04e7bd09a74382e04a33da021c874f99b103261"


def test_state_holds_parameters_balances_and_supply() -> None:
    genesis = _parse(alloc={ADDRESS: str(10**30), "0x" + "1b" * 20: 5}, gasLimit=9, baseFeeWei="3")
    state = Overlay()
    process_genesis(state, genesis)
    assert get_parameters(state) == genesis.parameters
    assert (genesis.parameters.gas_limit, genesis.parameters.base_fee) == (9, 3)
    assert accounts.get_balance(state, Address(b"\x1a" * 20)) == 10**30
    assert get_supply(state) == 10**30 + 5
    assert get_parameters(Overlay()) is None


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"evmChainId": None}, "no evmChainId"),
        ({"evmChainId": 0}, "must be above 0"),
        ({"evmChainId": True}, "evmChainId in app_state is True"),
        ({"gasLimit": -1}, "gasLimit in app_state is -1"),
        ({"baseFeeWei": "1.5"}, "'1.5'"),
        ({"alloc": {"0x12": "1"}}, "1 bytes, expected 20"),
        ({"alloc": {"zz": "1"}}, "no hex"),
        ({"alloc": {ADDRESS: "1", ADDRESS[2:]: "1"}}, "twice"),
        ({"alloc": {ADDRESS: str(2**256)}}, "expected an integer"),
        ({"alloc": {ADDRESS: str(2**256 - 1), "0x" + "1b" * 20: "1"}}, "sums to"),
        ({"alloc": []}, "no object"),
    ],
)
def test_invalid_app_state(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidGenesis, match=why):
        _parse(**fields)


def test_invalid_json() -> None:
    for text in (b"", b"[]", b"{"):
        with pytest.raises(InvalidGenesis):
            parse_genesis("c", text)


def test_invalid_unknown_key_names_the_nearest() -> None:
    with pytest.raises(InvalidGenesis, match="did you mean storageEpochBlocks"):
        process_system_genesis(Overlay(), _parse(storageEpochBlock=4))
    with pytest.raises(InvalidGenesis, match="storage_epoch_blocks is 0"):
        process_system_genesis(Overlay(), _parse(storageEpochBlocks=0))
    process_system_genesis(Overlay(), _parse(storageEpochBlocks=4, unbondBlocks=9))
