"""Answers that are none, and values that can't be read: an error that names the URL, no traceback."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from rpc_stub import Stub

from contracts.bindings.addresses import ADDRESSES
from contracts.bindings.client import ChainClient
from contracts.bindings.encoding import decode_output
from contracts.bindings.errors import BadAnswer, ChainUnreachable, RpcError
from contracts.bindings.sender import Sender


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"id": 1, "result": None}, "the node sent 'None', expected a quantity"),
        ({"id": 1, "result": "twelve"}, "the node sent 'twelve'"),
        ({"id": 1, "result": [1]}, "expected a quantity"),
        ({"id": 1, "result": "abc"}, "the node sent 'abc', expected a quantity"),
        ({"id": 1, "result": "0x1_0"}, "the node sent '0x1_0', expected a quantity"),
        ({"id": 1, "result": "0x\uff11\uff12"}, "expected a quantity"),
        ({"id": 1, "result": " 0x1"}, "expected a quantity"),
        ({"id": 1, "result": "0x1\n"}, "expected a quantity"),
        ({"id": 1, "result": "-0x1"}, "expected a quantity"),
        ({"id": 1, "result": "0X1"}, "expected a quantity"),
        ({"id": 1, "result": "0x"}, "expected a quantity"),
        ({"id": 1, "result": "0x1" + "0" * 64}, "of at most 256 bits"),
        ({"id": None, "error": {"code": -32700, "message": "parse error"}}, "parse error"),
    ],
)
def test_an_answer_that_is_none_is_an_error_and_no_traceback(
    stub: Callable[..., Stub], answer: dict[str, Any], said: str
) -> None:
    liar = stub()
    liar.text = json.dumps({"jsonrpc": "2.0", **answer}).encode()
    client = ChainClient([liar.url])
    with pytest.raises(RpcError, match=re.escape(said)):
        client.balance("0x" + "00" * 20)
    client.close()


OK = {"jsonrpc": "2.0", "result": "0x5"}


ODD_ANSWERS: list[tuple[int, Callable[[list[int]], Any], str]] = [
    *((number, lambda ids: [], "asked was") for number in (2, 3)),
    (1, lambda ids: [], "a list where 1 was asked for"),
    (1, lambda ids: [{**OK, "id": ids[0]}], "a list where 1 was asked for"),
    (1, lambda ids: [{**OK, "id": ids[0]}, {**OK, "id": ids[0]}], "a list where 1 was asked for"),
    *((number, lambda ids: [7], "no JSON-RPC") for number in (1, 2)),
    *((number, lambda ids: [[]], "no JSON-RPC") for number in (1, 2)),
    *((number, lambda ids: None, "no JSON-RPC") for number in (1, 2)),
    *((number, lambda ids: {}, "no JSON-RPC") for number in (1, 2)),
    (1, lambda ids: {**OK, "id": 77}, "id 77, asked was"),
    (1, lambda ids: {**OK, "id": [1]}, "id [1], asked was"),
    (1, lambda ids: {**OK, "id": float(ids[0])}, ".0, asked was"),
    (1, lambda ids: {**OK, "id": True}, "id True, asked was"),
    (1, lambda ids: {**OK, "id": {}}, "id {}, asked was"),
    (1, lambda ids: OK, "id None, asked was"),
    (2, lambda ids: {**OK, "id": ids[0]}, "one object where 2 was asked for"),
    (2, lambda ids: [{**OK, "id": ids[0]}], "asked was"),
    (2, lambda ids: [{**OK, "id": each} for each in (*ids, 77)], "asked was"),
    (2, lambda ids: [{**OK, "id": ids[0]}] * 2, "asked was"),
    (2, lambda ids: [{**OK, "id": each} for each in (ids[0], "2")], "asked was"),
]


@pytest.mark.parametrize(("num_calls", "answer", "said"), ODD_ANSWERS)
def test_what_is_no_answer_to_what_was_asked_counts_as_none(
    stub: Callable[..., Stub], num_calls: int, answer: Callable[[list[int]], Any], said: str
) -> None:
    odd, up = stub(), stub()
    odd.answer = lambda body: answer(  # type: ignore[method-assign]
        [each["id"] for each in (body if isinstance(body, list) else [body])]
    )
    calls: list[Any] = [("eth_getBalance", ("0x" + "00" * 20, "latest"))] * num_calls
    with ChainClient([odd.url]) as client, pytest.raises(ChainUnreachable) as caught:
        client.batch(calls)
    assert said in str(caught.value)
    assert odd.url in str(caught.value)
    assert "; next: " in str(caught.value)
    with ChainClient([odd.url, up.url]) as client:
        assert client.batch(calls) == ["0x5"] * num_calls


REVERT: dict[str, Any] = {"code": 3, "message": "execution reverted", "data": "0x08c379a0" + "ff" * 32}


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"result": None}, "the node sent 'None', expected bytes"),
        ({"result": 1e308}, "expected bytes"),
        ({"result": "0xzz"}, "the node sent '0xzz', expected bytes"),
        ({"result": "0x00 00"}, "the node sent '0x00 00', expected bytes"),
        ({"result": "00 00 00"}, "the node sent '00 00 00', expected bytes"),
        ({"result": "0x"}, "Training.run returned 0 bytes that don't decode"),
        ({"result": "0x" + "00" * 31}, "Training.run returned 31 bytes that don't decode"),
        ({"error": REVERT}, "a refusal whose values don't decode"),
        ({"error": {**REVERT, "data": "0x4e487b71"}}, "a refusal whose values don't decode"),
        ({"error": {**REVERT, "data": "0xno"}}, "the node sent '0xno', expected bytes"),
    ],
)
def test_a_call_s_answer_that_can_t_be_read_names_the_url_and_the_next_step(
    stub: Callable[..., Stub], answer: dict[str, Any], said: str
) -> None:
    liar = stub()
    liar.text = json.dumps({"jsonrpc": "2.0", "id": 1, **answer}).encode()
    with ChainClient([liar.url]) as client, pytest.raises(BadAnswer) as caught:
        client.training.run(1)
    assert str(caught.value).startswith(f"{liar.url}: ")
    assert said in str(caught.value)
    assert "; next: give the URL of a chain node" in str(caught.value)


def test_a_state_that_no_version_knows_can_t_be_read() -> None:
    words = [0] * 12
    words[8] = 77
    with pytest.raises(BadAnswer, match=r"Storage.blob returned 384 bytes that don't decode: 77 is not a valid"):
        decode_output("Storage", "blob", b"".join(word.to_bytes(32, "big") for word in words))


@pytest.mark.parametrize("logs", [None, 5, "", "0x", {}, {"a": 1}, [5], [[]], ["0x"]])
def test_what_is_no_list_of_logs_says_nothing_of_events(stub: Callable[..., Stub], logs: Any) -> None:
    liar = stub()
    liar.text = json.dumps({"jsonrpc": "2.0", "id": 1, "result": logs}).encode()
    with ChainClient([liar.url]) as client, pytest.raises(BadAnswer, match="expected a list of logs"):
        client.has_events("Training", b"\1" * 32, from_height=1, to_height=2)
    with ChainClient([liar.url]) as client, pytest.raises(BadAnswer, match="expected a list of logs"):
        client.events("Training", ["RoundOpened"], from_height=1, to_height=2)


@pytest.mark.parametrize("logs", [None, 5, ["0x"], [{"address": None}], [{"address": ADDRESSES["Training"]}]])
def test_logs_that_can_t_be_read(stub: Callable[..., Stub], logs: Any) -> None:
    liar = stub()
    liar.text = json.dumps({"jsonrpc": "2.0", "id": 1, "result": logs}).encode()
    with ChainClient([liar.url]) as client, pytest.raises(BadAnswer, match=re.escape(liar.url)):
        client.events("Training", ["RoundOpened"], from_height=1, to_height=2)


@pytest.mark.parametrize("result", [None, {}, "0x" + "f" * 5000, {"baseFeePerGas": None}])
def test_a_sender_says_what_it_can_t_read(stub: Callable[..., Stub], result: Any) -> None:
    liar = stub()
    liar.answer = lambda body: (  # type: ignore[method-assign]
        [liar.answer(each) for each in body]
        if isinstance(body, list)
        else {"jsonrpc": "2.0", "id": body["id"], "result": result}
    )
    with ChainClient([liar.url]) as client, pytest.raises(BadAnswer, match=re.escape(liar.url)):
        Sender(client, b"\1" * 32).transfer("0x" + "00" * 20, 1, deadline_seconds=1)
