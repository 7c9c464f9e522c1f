"""Reads at a block before the newest give what ``latest`` gave then: balances, nonces, slots, code, calls and views."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

import pytest
from eth_account import Account
from hypothesis import given
from hypothesis import strategies as st

from chain import store
from chain.core.evm.addresses import compute_create_address
from chain.core.state import Overlay
from chain.store import HISTORY_BLOCKS
from chain.stored_states import PastState
from contracts.bindings.encoding import encode_call

STAKING = "0x0000000000000000000000000000000000001002"
COUNTER = "0x600b600c600039600b6000f3" + "5f5460010180805f55a000"
"""Initcode: counts its calls in slot 0."""


def ask(url: str, method: str, *params: Any) -> Any:
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=10) as response:
        answer = json.loads(response.read())
    return answer.get("result", answer.get("error"))


def look(url: str, account: str, contract: str, block: Any) -> list[Any]:
    """Everything that a block parameter may ask for."""
    bond = "0x" + encode_call("Staking", "bondOf", (account,)).hex()
    return [
        ask(url, "eth_getBalance", account, block),
        ask(url, "eth_getTransactionCount", account, block),
        ask(url, "eth_getCode", contract, block),
        ask(url, "eth_getStorageAt", contract, "0x0", block),
        ask(url, "eth_call", {"to": STAKING, "data": bond}, block),
        ask(url, "eth_call", {"data": "0x435f5260205ff3"}, block),  # NUMBER
        ask(url, "eth_call", {"to": contract, "data": "0x", "from": account}, block),
    ]


def test_the_past_is_what_it_was(solo: Any) -> None:
    account = Account.create()
    solo.faucet.transfer(account.address, 10**20)
    contract = "0x" + _create_address(account.address)
    seen: dict[int, list[Any]] = {solo.chain.height: look(solo.url, account.address, contract, "latest")}
    bond = {"to": STAKING, "data": "0x" + encode_call("Staking", "bond", ()).hex(), "value": 5}
    steps: list[dict[str, Any]] = [{"data": COUNTER}, {"to": contract}, bond, {"to": contract}, bond, {"to": contract}]
    for nonce, step in enumerate(steps):
        fields = {"gas": 300_000, "gasPrice": 10**9, "nonce": nonce, "chainId": 4242, "value": 0, **step}
        if "to" in fields:
            fields["to"] = bytes.fromhex(fields["to"][2:])
        signed = account.sign_transaction(fields)
        sent = ask(solo.url, "eth_sendRawTransaction", "0x" + signed.raw_transaction.hex())
        assert ask(solo.url, "eth_getTransactionReceipt", sent)["status"] == "0x1"
        solo.chain.mine(nonce % 3)
        seen[solo.chain.height] = look(solo.url, account.address, contract, "latest")
    assert len({json.dumps(each) for each in seen.values()}) == len(seen)
    for height, expected in seen.items():
        block_hash = ask(solo.url, "eth_getBlockByNumber", hex(height), False)["hash"]
        for name in (hex(height), {"blockNumber": hex(height)}, {"blockHash": block_hash}):
            assert look(solo.url, account.address, contract, name) == expected
    oldest = min(seen)
    solo.chain.mine(HISTORY_BLOCKS - (solo.chain.height - oldest))
    assert look(solo.url, account.address, contract, hex(oldest)) == seen[oldest], "the last block of it"
    solo.chain.mine()
    assert "not kept any more" in ask(solo.url, "eth_getBalance", account.address, hex(oldest))["message"]


def test_gas_is_estimated_on_the_state_that_is_named(solo: Any) -> None:
    account = Account.create()
    poor = solo.chain.height
    solo.faucet.transfer(account.address, 10**18)
    request = {"from": account.address, "to": account.address, "value": "0x5", "data": "0x"}
    assert "insufficient funds" in ask(solo.url, "eth_estimateGas", request, hex(poor))["message"]
    assert int(ask(solo.url, "eth_estimateGas", request, "latest"), 16) == 21_000


def _create_address(sender: str) -> str:
    return compute_create_address(bytes.fromhex(sender[2:]), 0).hex()


keys = st.binary(min_size=1, max_size=2)
values = st.none() | st.binary(max_size=2)


@given(old=st.dictionaries(keys, st.binary(max_size=2)), new=st.dictionaries(keys, values), span=st.tuples(keys, keys))
def test_a_past_state_is_the_state_before_its_changes(
    old: dict[bytes, bytes], new: dict[bytes, bytes | None], span: tuple[bytes, bytes]
) -> None:
    before, after = Overlay(), Overlay()
    for key, value in old.items():
        before.set(key, value)
        after.set(key, value)
    for key, change in new.items():
        if change is None:
            after.delete(key)
        else:
            after.set(key, change)
    past = PastState(after, {key: before.get(key) for key in new})
    for key in {*old, *new, b"?"}:
        assert past.get(key) == before.get(key)
    assert list(past.iterate(*sorted(span))) == list(before.iterate(*sorted(span)))


def test_the_past_that_is_read_is_bounded(solo: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    height = solo.chain.height
    for _ in range(3):
        solo.faucet.transfer(Account.create().address, 1)
    with solo.chain.lock:
        committed = solo.chain.store.committed
        whole = committed.changed_since(height)
        assert whole is not None
        assert len(whole) > 3
        monkeypatch.setattr(store, "MAX_UNDO_BYTES", 100)
        assert committed.changed_since(height) is None
        assert committed.changed_since(committed.height) == {}
