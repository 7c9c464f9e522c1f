"""Whatever a client sends, the server answers JSON-RPC, and never with its internal error."""

from __future__ import annotations

import http.client
import json
import socket
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chain.rpc.dispatch import READ_METHODS
from chain.rpc.upstream_methods import UPSTREAM_METHODS

INTERNAL_ERROR = -32603
METHODS = sorted([*READ_METHODS, *UPSTREAM_METHODS])
TRAINING = "0x0000000000000000000000000000000000001000"

tags = ["latest", "pending", "earliest", "", "\u0661"]
numbers = ["0x", "0x0", "0x1", "0x-1", "0x1_0", "0xg", "0x" + "f" * 15, "0x" + "f" * 64, "0x" + "f" * 65]
data = ["0x" + "0" * 40, TRAINING, "0x8a52d919" + "0" * 63 + "1"]
texts = st.sampled_from([*tags, *numbers, *data])
scalars = (
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | texts
)
keys = st.sampled_from(
    [
        *("from", "to", "data", "input", "gas", "value", "address", "topics", "fromBlock", "toBlock", "blockHash"),
        *("0x" + "12" * 20, "balance", "nonce", "code", "state", "stateDiff"),
        *("number", "time", "gasLimit", "feeRecipient", "random", "baseFee", "difficulty"),
    ]
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4), max_leaves=8
)
calls = st.fixed_dictionaries(
    {
        "jsonrpc": st.just("2.0"),
        "id": scalars,
        "method": st.sampled_from(METHODS),
        "params": st.lists(values, max_size=4),
    }
)
relaxed = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def connection(solo: Any) -> Any:
    connection = http.client.HTTPConnection(solo.url.removeprefix("http://"), timeout=20)
    yield connection
    connection.close()


def test_who_leaves_before_the_answer_is_no_error_of_the_node(solo: Any, rpc_process: Any, tmp_path: Path) -> None:
    """Twenty clients that reset their connections while they are answered, and one that stays: nothing is logged."""
    server = rpc_process(solo.chain.home, solo.chain.url, tmp_path / "log")
    host, port = server.url.removeprefix("http://").split(":")
    call = {"jsonrpc": "2.0", "id": 1, "method": "eth_call", "params": [{"data": "0x5b5f56", "gas": "0x18000"}]}
    body = json.dumps(call).encode()
    head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
    handshake = b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    handshake += b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    for sent in [head + body, handshake] * 10:
        with socket.create_connection((host, int(port)), timeout=20) as leaving:
            leaving.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            leaving.sendall(sent)
    staying = http.client.HTTPConnection(host, int(port), timeout=60)
    assert "out of gas" in post(staying, body)["error"]["message"]  # answered after them
    staying.close()
    assert server.stop() == 0
    said = (tmp_path / "log").read_text()
    assert "Traceback" not in said, said


def post(connection: http.client.HTTPConnection, body: bytes) -> Any:
    connection.request("POST", "/", body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    text = response.read()
    assert response.status == 200
    return json.loads(text) if text else None


def check(answer: Any) -> None:
    assert answer["jsonrpc"] == "2.0"
    assert ("result" in answer) != ("error" in answer)
    if "error" in answer:
        assert isinstance(answer["error"]["code"], int)
        assert isinstance(answer["error"]["message"], str)
        assert answer["error"]["code"] != INTERNAL_ERROR


@relaxed
@given(batch=st.lists(calls, min_size=1, max_size=8))
def test_any_parameters_of_any_method(connection: Any, batch: list[dict[str, Any]]) -> None:
    answers = post(connection, json.dumps(batch).encode())
    assert [answer["id"] for answer in answers] == [call["id"] for call in batch]
    for answer in answers:
        check(answer)


@relaxed
@given(body=st.binary(max_size=60) | values.map(lambda value: json.dumps(value).encode()))
def test_any_body(connection: Any, body: bytes) -> None:
    answer = post(connection, body)
    for each in answer if isinstance(answer, list) else [answer] if answer is not None else []:
        check(each)


DEEP = [b"[" * 100_000, b'{"id":' * 50_000, b'{"method":"eth_chainId","id":' + b"[" * 5_000 + b"]" * 5_000 + b"}"]


@pytest.mark.parametrize("body", DEEP, ids=["lists", "objects", "id"])
def test_brackets_without_end(connection: Any, body: bytes) -> None:
    answer = post(connection, body)
    assert answer["error"]["code"] == -32700
    check(post(connection, b'{"jsonrpc":"2.0","id":1,"method":"eth_chainId"}'))


def test_calls_without_end_keep_nobody_waiting(solo: Any) -> None:
    """Free loops in the EVM: each is given up, and reads and views go on meanwhile."""

    def ask(method: str, *params: Any) -> tuple[float, Any]:
        connection = http.client.HTTPConnection(solo.url.removeprefix("http://"), timeout=60)
        started = time.monotonic()
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": list(params)}
        answer = post(connection, json.dumps(body).encode())
        connection.close()
        return time.monotonic() - started, answer

    endless = {"data": "0x5b5f56"}  # JUMPDEST PUSH0 JUMP
    view = {"to": TRAINING, "data": "0x"}
    with ThreadPoolExecutor(8) as pool:
        loops = [pool.submit(ask, method, endless) for method in ["eth_call", "eth_estimateGas"] * 3]
        waits = []
        while not all(loop.done() for loop in loops):
            waits += [ask("eth_blockNumber")[0], ask("eth_call", view)[0]]
        messages = [loop.result()[1]["error"]["message"] for loop in loops]
    assert len(waits) >= 10
    assert max(waits) < 1.0, waits
    assert all("execution timeout" in message or "out of gas" in message for message in messages), messages
