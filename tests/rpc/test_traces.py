"""debug_traceTransaction over JSON-RPC: of a contract, a system contract, a transfer; what is too old says so."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

import pytest
from eth_account import Account

from chain.core.evm.addresses import compute_create_address
from chain.store import HISTORY_BLOCKS
from contracts.bindings.encoding import encode_call

STAKING = "0x0000000000000000000000000000000000001002"
COUNTER = "0x600b600c600039600b6000f3" + "5f5460010180805f55a000"
"""Initcode: counts its calls in slot 0."""
RECEIVER = "0x" + "5d" * 20
FORWARD = "0x6012600c60003960126000f3" + "5f5f5f5f5f6110025af15f5260205ff3000000"
"""Initcode: calls Staking without calldata, which is refused, and returns 0."""


def ask(url: str, method: str, *params: Any) -> Any:
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=20) as response:
        answer = json.loads(response.read())
    return answer.get("result", answer.get("error"))


class Person:
    """Signs and sends; several transactions may share a block."""

    def __init__(self, solo: Any) -> None:
        self.solo = solo
        self.account = Account.create()
        self.nonce = 0
        solo.faucet.transfer(self.account.address, 10**19)

    def send(self, **fields: Any) -> str:
        if "to" in fields:
            fields["to"] = bytes.fromhex(fields["to"][2:])
        request = {"gas": 200_000, "gasPrice": 10**9, "nonce": self.nonce, "chainId": 4242, "value": 0, **fields}
        self.nonce += 1
        raw = self.account.sign_transaction(request).raw_transaction
        return str(ask(self.solo.url, "eth_sendRawTransaction", "0x" + raw.hex()))

    def create(self, code: str) -> str:
        self.send(data=code)
        address = compute_create_address(bytes.fromhex(self.account.address[2:]), self.nonce - 1)
        return "0x" + address.hex()


@pytest.fixture
def person(solo: Any) -> Person:
    return Person(solo)


def test_the_third_of_a_block_sees_what_the_first_two_did(solo: Any, person: Person) -> None:
    counter = person.create(COUNTER)
    solo.chain.is_automatic = False
    sent = [person.send(to=counter) for _ in range(3)]
    solo.chain.mine(2)
    receipts = [ask(solo.url, "eth_getTransactionReceipt", each) for each in sent]
    assert len({receipt["blockNumber"] for receipt in receipts}) == 1
    for index, (each, receipt) in enumerate(zip(sent, receipts, strict=True)):
        trace = ask(solo.url, "debug_traceTransaction", each)
        assert (trace["gas"], trace["failed"], trace["returnValue"]) == (int(receipt["gasUsed"], 16), False, "0x")
        ops = [step["op"] for step in trace["structLogs"]]
        assert ops == ["PUSH0", "SLOAD", "PUSH1", "ADD", "DUP1", "DUP1", "PUSH0", "SSTORE", "LOG0", "STOP"]
        (stored,) = [step["storage"] for step in trace["structLogs"] if step["op"] == "SSTORE"]
        assert stored == {"0" * 64: f"{index + 1:064x}"}
        assert trace["structLogs"][2]["stack"] == [hex(index)]
    bare = ask(solo.url, "debug_traceTransaction", sent[0], {"disableStack": True, "disableStorage": True})
    assert set(bare["structLogs"][1]) == {"pc", "op", "gas", "gasCost", "depth"}
    for limit, num_steps in ((3, 3), (0, 10), (50, 10)):
        cut = ask(solo.url, "debug_traceTransaction", sent[0], {"limit": limit, "timeout": "5s"})
        assert (len(cut["structLogs"]), cut["gas"]) == (num_steps, int(receipts[0]["gasUsed"], 16))
    for options, said in (
        ({"limit": "3"}, "limit is '3', expected a number"),
        ({"limit": -1}, "limit is '-1'"),
        ({"timeout": 5}, "timeout is '5', expected a duration such as 500ms"),
        ({"timeout": "5h"}, "timeout is '5h'"),
    ):
        refused = ask(solo.url, "debug_traceTransaction", sent[0], options)
        assert (refused["code"], said in refused["message"]) == (-32602, True)
    given_up = ask(solo.url, "debug_traceTransaction", sent[0], {"timeout": "0ms"})
    assert "execution timeout" in given_up["message"]
    full = ask(solo.url, "debug_traceTransaction", sent[0], {"enableMemory": True})
    assert full["structLogs"][0]["memory"] == []


def test_calls_into_a_system_contract_are_frames(solo: Any, person: Person) -> None:
    forward = person.create(FORWARD)
    shown = ask(solo.url, "debug_traceTransaction", person.send(to=forward), {"tracer": "callTracer"})
    (inner,) = shown["calls"]
    assert (shown["type"], shown["to"], shown["from"]) == ("CALL", forward, person.account.address.lower())
    assert (inner["type"], inner["to"], inner["from"]) == ("CALL", STAKING, forward)
    assert inner["error"] == "execution reverted"
    config = {"tracer": "callTracer", "tracerConfig": {"onlyTopCall": True}}
    assert "calls" not in ask(solo.url, "debug_traceTransaction", person.send(to=forward), config)


def test_what_never_gets_into_the_evm_is_one_frame(solo: Any, person: Person) -> None:
    bond = person.send(to=STAKING, data="0x" + encode_call("Staking", "bond", ()).hex(), value=7)
    refused = person.send(to=STAKING, data="0x" + encode_call("Staking", "unbond", (8,)).hex())
    moved = person.send(to=RECEIVER, value=9, gas=21_000)
    frames = [
        ask(solo.url, "debug_traceTransaction", each, {"tracer": "callTracer"}) for each in (bond, refused, moved)
    ]
    assert [frame["value"] for frame in frames] == ["0x7", "0x0", "0x9"]
    assert "error" not in frames[0]
    assert frames[1]["error"] == "execution reverted"
    assert "InsufficientBond" in frames[1]["revertReason"]
    assert frames[2]["gasUsed"] == hex(21_000)
    assert ask(solo.url, "debug_traceTransaction", moved)["structLogs"] == []
    assert ask(solo.url, "debug_traceTransaction", refused)["failed"] is True


def test_what_cannot_be_shown_says_why(solo: Any, person: Person) -> None:
    sent = person.send(to=RECEIVER, value=9, gas=21_000)
    assert ask(solo.url, "debug_traceTransaction", sent, {"tracer": "prestateTracer"})["code"] == -32602
    assert ask(solo.url, "debug_traceTransaction", sent, {"trace": 1})["code"] == -32602
    assert "is in no block" in ask(solo.url, "debug_traceTransaction", "0x" + "ab" * 32)["message"]
    endless = person.send(data="0x5b5f56", gas=500_000)
    assert "more than 20000 instructions" in ask(solo.url, "debug_traceTransaction", endless)["message"]
    shown = ask(solo.url, "debug_traceTransaction", endless, {"tracer": "callTracer"})
    assert (shown["type"], shown["error"]) == ("CREATE", "out of gas")
    solo.chain.mine(HISTORY_BLOCKS + 1)
    assert "is not kept any more" in ask(solo.url, "debug_traceTransaction", sent)["message"]
