"""Several chain URLs: one down, hanging, broken or lagging is survived; a foreign chain is refused."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from contracts.bindings.addresses import ADDRESSES
from contracts.bindings.client import ChainClient
from contracts.bindings.encoding import decode_output
from contracts.bindings.errors import BadAnswer, ChainUnreachable, NotJsonRpc, RpcError, WrongChain
from contracts.bindings.sender import Sender


class Stub:
    """A node that answers what it is told to."""

    def __init__(self, *, height: int = 100, chain_id: int = 7, history: int = 0) -> None:
        self.height, self.chain_id, self.history = height, chain_id, history
        self.status = 200
        self.text: bytes | None = None
        self.num_requests = 0
        self.num_bytes = 0
        self.pieces_bytes, self.pause_seconds = 1 << 30, 0.0
        stub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                stub.num_requests += 1
                text = stub.text if stub.text is not None else json.dumps(stub.answer(json.loads(body))).encode()
                self.send_response(stub.status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                for start in range(0, len(text), stub.pieces_bytes):
                    self.wfile.write(text[start : start + stub.pieces_bytes])
                    time.sleep(stub.pause_seconds)

            def log_message(self, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def answer(self, body: Any) -> Any:
        if isinstance(body, list):
            return [self.answer(each) for each in body]
        results = {"eth_blockNumber": hex(self.height), "eth_chainId": hex(self.chain_id), "eth_getBalance": "0x5"}
        if body["method"] == "eth_getBlockByNumber" and self.history:
            height = self.height if body["params"][0] == "latest" else int(body["params"][0], 16)
            block = {"number": hex(height), "hash": f"0x{self.history:032x}{height:032x}"}
            return {"jsonrpc": "2.0", "id": body["id"], "result": block if height <= self.height else None}
        if body["method"] in results:
            return {"jsonrpc": "2.0", "id": body["id"], "result": results[body["method"]]}
        return {"jsonrpc": "2.0", "id": body["id"], "error": {"code": -32601, "message": "no such method"}}

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def stub() -> Iterator[Callable[..., Stub]]:
    made: list[Stub] = []

    def make(**options: int) -> Stub:
        made.append(Stub(**options))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def hanging_url() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def test_one_down_is_survived_and_not_asked_each_time(stub: Callable[..., Stub]) -> None:
    down, up = stub(), stub()
    client = ChainClient([down.url, up.url])
    assert client.height() == 100
    down.close()
    for _ in range(5):
        assert client.balance("0x" + "00" * 20) == 5
    client.close()


BROKEN = [
    *((500, b"oops"), (200, b"no json"), (200, b""), (302, b"elsewhere")),
    *((200, b'{"id":1,"error":5}'), (200, b'{"id":1,"error":null}'), (200, b'[{"id":1,"error":{"code":"x"}}]')),
]


@pytest.mark.parametrize(("status", "text"), BROKEN)
def test_a_broken_answer_is_survived(stub: Callable[..., Stub], status: int, text: bytes) -> None:
    broken, up = stub(), stub()
    broken.status, broken.text = status, text
    client = ChainClient([broken.url, up.url])
    assert client.balance("0x" + "00" * 20) == 5
    client.close()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"id": 1, "result": None}, "the node sent 'None', expected a quantity"),
        ({"id": 1, "result": "twelve"}, "the node sent 'twelve'"),
        ({"id": 1, "result": [1]}, "expected a quantity"),
        ({"id": 77, "result": "0x1"}, "answered id 77, asked was [1]"),
        ({"id": [1], "result": "0x1"}, r"answered id [1], asked was [1]"),
        ({"result": "0x1"}, "answered id None, asked was [1]"),
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


def test_a_hanging_one_costs_one_timeout(stub: Callable[..., Stub], hanging_url: str) -> None:
    up = stub()
    client = ChainClient([hanging_url, up.url], timeout_seconds=0.3)
    started = time.monotonic()
    for _ in range(10):
        assert client.balance("0x" + "00" * 20) == 5
    assert 0.3 <= time.monotonic() - started < 2.0
    client.close()


@pytest.fixture
def dripping() -> Iterator[Callable[[bytes], str]]:
    """A stranger that begins an answer and goes on, a byte at a time, for 20 s."""
    is_over = threading.Event()
    listeners = []

    def listen(head: bytes) -> str:
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)

        def drip() -> None:
            sock, _ = listener.accept()
            end = time.monotonic() + 20
            with sock, contextlib.suppress(OSError):
                sock.sendall(head)
                while time.monotonic() < end and not is_over.wait(0.05):
                    sock.sendall(b" ")

        threading.Thread(target=drip, daemon=True).start()
        return f"http://127.0.0.1:{listener.getsockname()[1]}"

    yield listen
    is_over.set()
    for each in listeners:
        each.close()


@pytest.mark.parametrize(
    "head", [b"HTTP/1.1 200 OK\r\nContent-Length: 9000\r\n\r\n", b"HTTP/1.1 200 OK\r\nX-Long: ", b""]
)
def test_a_dripping_one_costs_one_timeout(
    stub: Callable[..., Stub], dripping: Callable[[bytes], str], head: bytes
) -> None:
    client = ChainClient([dripping(head), stub().url], timeout_seconds=0.5)
    started = time.monotonic()
    assert client.balance("0x" + "00" * 20) == 5
    assert time.monotonic() - started < 10
    client.close()
    client = ChainClient([dripping(head)], timeout_seconds=0.5)
    with pytest.raises(ChainUnreachable, match=r"(no whole answer within 0\.\d s|timed out).*next: "):
        client.balance("0x" + "00" * 20)
    assert time.monotonic() - started < 15
    client.close()


def test_an_answer_that_comes_steadily_is_taken(stub: Callable[..., Stub]) -> None:
    """Longer than the time-out in all, a mebibyte at a time: what comes makes the wait longer."""
    slow = stub()
    slow.pieces_bytes, slow.pause_seconds = 1 << 20, 0.2
    slow.text = json.dumps({"jsonrpc": "2.0", "id": 1, "result": "x" * (4 << 20)}).encode()
    client = ChainClient([slow.url], timeout_seconds=0.5)
    started = time.monotonic()
    assert len(client.request("eth_call")) == 4 << 20
    assert time.monotonic() - started > 0.5, "it was slower than the time-out"
    client.close()


def test_a_look_up_that_hangs_costs_one_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    real, is_over = socket.getaddrinfo, threading.Event()

    def hang(host: str, *arguments: Any, **options: Any) -> Any:
        if host == "hangs.invalid" and not options.get("flags"):
            is_over.wait(20)
        return real(host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    client = ChainClient(["http://hangs.invalid:8545"], timeout_seconds=0.3)
    started = time.monotonic()
    with pytest.raises(ChainUnreachable, match=r"no address of hangs\.invalid within 0\.3 s"):
        client.height()
    assert time.monotonic() - started < 10
    is_over.set()
    client.close()


def test_all_down_names_each_and_the_next_step(stub: Callable[..., Stub]) -> None:
    client = ChainClient(["http://127.0.0.1:1", "http://127.0.0.1:2"], timeout_seconds=0.5)
    with pytest.raises(ChainUnreachable, match=r"127\.0\.0\.1:1: .*127\.0\.0\.1:2: .*localnet up"):
        client.height()


def test_a_lagging_one_is_passed_over(stub: Callable[..., Stub]) -> None:
    behind, ahead = stub(height=90), stub(height=100)
    client = ChainClient([behind.url, ahead.url])
    end = time.monotonic() + 10
    while client.height() != 100:
        assert time.monotonic() < end, "the lagging URL is still asked"
        time.sleep(0.05)
    asked = behind.num_requests
    assert client.balance("0x" + "00" * 20) == 5
    assert behind.num_requests == asked
    client.close()


def test_invalid_foreign_chain(stub: Callable[..., Stub]) -> None:
    ours, foreign = stub(chain_id=7), stub(chain_id=8)
    client = ChainClient([ours.url, foreign.url])
    client.height()
    ours.status = 500
    with pytest.raises(WrongChain, match="serves chain id 8, expected 7"):
        client.height()
    client.close()


def test_errors_of_the_node_are_no_reason_to_ask_another(stub: Callable[..., Stub]) -> None:
    first, second = stub(), stub()
    client = ChainClient([first.url, second.url])
    with pytest.raises(RpcError, match="no such method"):
        client.request("eth_nothing")
    assert second.num_requests == 0
    client.close()


def test_cometbft_s_own_rpc_is_no_chain_node(stub: Callable[..., Stub]) -> None:
    """It speaks JSON-RPC too, and knows no method of Ethereum's."""
    core, up = stub(), stub()
    core.text = json.dumps(
        {"jsonrpc": "2.0", "id": 1, "error": {"code": -32601, "message": "Method not found"}}
    ).encode()
    client = ChainClient([core.url])
    with pytest.raises(NotJsonRpc, match=r"has no eth_getBalance: CometBFT's own RPC, perhaps.*next: give the URL"):
        client.balance("0x" + "00" * 20)
    client.close()
    client = ChainClient([core.url, up.url])
    core.text = json.dumps(
        {"jsonrpc": "2.0", "id": 1, "error": {"code": -32601, "message": "Method not found"}}
    ).encode()
    assert client.balance("0x" + "00" * 20) == 5
    client.close()


def test_bytes_are_counted_at_the_socket(stub: Callable[..., Stub]) -> None:
    client = ChainClient([stub().url])
    client.balance("0x" + "00" * 20)
    sent, received = client.bytes_sent, client.bytes_received
    assert sent > 100
    assert received > 50
    client.balance("0x" + "00" * 20)
    assert client.bytes_sent == 2 * sent
    assert client.bytes_received == 2 * received
    client.close()


def test_threads_share_one_client(stub: Callable[..., Stub]) -> None:
    client = ChainClient([stub().url])
    results: list[int] = []
    threads = [threading.Thread(target=lambda: results.extend(client.height() for _ in range(20))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert results == [100] * 160
    client.close()


@pytest.mark.parametrize("urls", [[], ["localhost:8545"], ["ftp://host"], ["http://"]])
def test_invalid_urls(urls: list[str]) -> None:
    with pytest.raises(ValueError, match="chain URL"):
        ChainClient(urls)


def test_of_two_histories_the_first_is_followed_whatever_happens(stub: Callable[..., Stub]) -> None:
    """The other one has our chain id and more blocks; with our node away there is no answer rather than its answer."""
    ours, other = stub(height=100, history=1), stub(height=200, history=2)
    client = ChainClient([ours.url, other.url])
    assert client.height() == 100
    ours.status = 500
    with pytest.raises(ChainUnreachable, match=r"has another block 100, .*0002.* than .*0001"):
        client.balance("0x" + "00" * 20)
    ours.status = 200
    end = time.monotonic() + 10
    while True:
        assert time.monotonic() < end, "our node is not asked again"
        try:
            assert client.height() == 100
            break
        except ChainUnreachable:
            time.sleep(0.05)
    client.close()


def test_who_has_our_history_takes_over(stub: Callable[..., Stub]) -> None:
    first, second = stub(height=100, history=1), stub(height=101, history=1)
    client = ChainClient([first.url, second.url])
    assert client.height() == 100
    first.status = 500
    assert client.height() == 101
    assert client.balance("0x" + "00" * 20) == 5
    client.close()


def test_who_is_behind_what_we_have_seen_is_not_asked(stub: Callable[..., Stub]) -> None:
    ahead, behind = stub(height=100, history=1), stub(height=99, history=1)
    client = ChainClient([ahead.url, behind.url])
    assert client.height() == 100
    ahead.status = 500
    with pytest.raises(ChainUnreachable, match="is behind block 100"):
        client.balance("0x" + "00" * 20)
    behind.height = 100
    end = time.monotonic() + 10
    while True:
        assert time.monotonic() < end, "it has caught up and is not asked"
        try:
            assert client.balance("0x" + "00" * 20) == 5
            break
        except ChainUnreachable:
            time.sleep(0.05)
    client.close()


REVERT: dict[str, Any] = {"code": 3, "message": "execution reverted", "data": "0x08c379a0" + "ff" * 32}


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"result": None}, "the node sent 'None', expected bytes"),
        ({"result": 1e308}, "expected bytes"),
        ({"result": "0xzz"}, "the node sent '0xzz', expected bytes"),
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


def test_a_block_that_can_t_be_read_has_its_url_passed_over(stub: Callable[..., Stub]) -> None:
    liar, up = stub(history=1), stub(history=1)
    whole = liar.answer

    def answer(body: Any) -> Any:
        is_block = not isinstance(body, list) and body["method"] == "eth_getBlockByNumber"
        return {"jsonrpc": "2.0", "id": body["id"], "result": 7} if is_block else whole(body)

    liar.answer = answer  # type: ignore[method-assign]
    with ChainClient([liar.url, up.url]) as client:
        assert client.balance("0x" + "00" * 20) == 5
