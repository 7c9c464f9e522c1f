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
from contracts.bindings.errors import BadAnswer, ChainUnreachable, ContractError, NotJsonRpc, RpcError, WrongChain
from contracts.bindings.sender import Sender


class Stub:
    """A node that answers what it is told to."""

    def __init__(self, *, height: int = 100, chain_id: int = 7, history: int = 1) -> None:
        self.height, self.chain_id, self.history = height, chain_id, history
        self.told: int | None = None
        """In place of the height, what it says that its newest block is."""
        self.forged = False
        """Whether it shows blocks that nobody made up to what it says."""
        self.errors: dict[str, dict[str, Any]] = {}
        """Methods that it answers with an error -> the error."""
        self.asked: list[str] = []
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
        self.asked.append(body["method"])
        told = self.height if self.told is None else self.told
        results = {"eth_blockNumber": hex(told), "eth_chainId": hex(self.chain_id), "eth_getBalance": "0x5"}
        if body["method"] in self.errors:
            return {"jsonrpc": "2.0", "id": body["id"], "error": self.errors[body["method"]]}
        if body["method"] == "eth_getBlockByNumber":
            is_newest = body["params"][0] == "latest"
            height = told if is_newest else int(body["params"][0], 16)
            is_there = is_newest or height <= (told if self.forged else self.height)
            return {"jsonrpc": "2.0", "id": body["id"], "result": self.block(height) if is_there else None}
        if body["method"] in results:
            return {"jsonrpc": "2.0", "id": body["id"], "result": results[body["method"]]}
        return {"jsonrpc": "2.0", "id": body["id"], "error": {"code": -32601, "message": "no such method"}}

    def block(self, height: int) -> dict[str, str]:
        prefix = f"0x{self.history:032x}"
        return {"number": hex(height), "hash": f"{prefix}{height:032x}", "parentHash": f"{prefix}{height - 1:032x}"}

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


@pytest.mark.parametrize("num_calls", [1, 2])
def test_a_refused_batch_is_answered_by_one_error(stub: Callable[..., Stub], num_calls: int) -> None:
    node = stub()
    node.text = json.dumps({"id": None, "error": {"code": -32600, "message": "batch too large"}}).encode()
    with ChainClient([node.url]) as client, pytest.raises(RpcError, match="batch too large"):
        client.batch([("eth_chainId", ())] * num_calls)


INTERNAL = {"code": -32000, "message": "internal"}
ADDRESS = "0x" + "00" * 20


def test_an_error_is_given_to_the_caller_when_no_other_has_the_answer(stub: Callable[..., Stub]) -> None:
    first, second = stub(), stub()
    first.errors["eth_getBalance"], second.errors["eth_getBalance"] = INTERNAL, {"code": -32000, "message": "second's"}
    with ChainClient([first.url, second.url]) as client:
        with pytest.raises(RpcError, match="internal"):
            client.balance(ADDRESS)
        assert second.asked.count("eth_getBalance") == 1
        second.errors.clear()
        assert client.balance(ADDRESS) == 5
        asked = len(first.asked)
        assert [client.balance(ADDRESS) for _ in range(5)] == [5] * 5
        assert len(first.asked) == asked, "who had no answer comes after who had"
        second.status = 500
        first.errors.clear()
        assert client.balance(ADDRESS) == 5, "it is asked all the same where there is nobody else"


def test_what_can_t_be_read_is_asked_of_another(stub: Callable[..., Stub]) -> None:
    first, second = stub(), stub()
    whole = first.answer
    first.answer = lambda body: (  # type: ignore[method-assign]
        {"jsonrpc": "2.0", "id": body["id"], "result": "abc"}
        if not isinstance(body, list) and body["method"] == "eth_getBalance"
        else whole(body)
    )
    with ChainClient([first.url, second.url]) as client:
        assert client.balance(ADDRESS) == 5


def test_a_contract_s_no_and_a_refused_transaction_are_no_reason_to_ask_another(stub: Callable[..., Stub]) -> None:
    first, second = stub(), stub()
    no = "0x08c379a0" + f"{32:064x}{2:064x}" + b"no".hex().ljust(64, "0")
    first.errors["eth_call"] = {"code": 3, "message": "execution reverted", "data": no}
    first.errors["eth_sendRawTransaction"] = {"code": -32000, "message": "nonce too low"}
    with ChainClient([first.url, second.url]) as client:
        with pytest.raises(ContractError, match="no"):
            client.training.run(1)
        with pytest.raises(RpcError, match="nonce too low"):
            client.request("eth_sendRawTransaction", "0x00")
    assert second.num_requests == 0


FUTURE = 2**48 - 1


def test_a_height_that_isn_t_shown_is_no_answer(stub: Callable[..., Stub]) -> None:
    liar = stub(height=100)
    liar.told = FUTURE
    with ChainClient([liar.url]) as client:
        with pytest.raises(ChainUnreachable, match=f"newest block is {FUTURE}, and doesn't show it.*next: "):
            client.height()
        liar.told = None
        assert client.height() == 100
        liar.told = FUTURE
        with pytest.raises(ChainUnreachable, match="doesn't show it"):
            client.height()
        liar.told = None
        assert client.height() == 100


@pytest.mark.parametrize(
    "odd",
    [{"number": "0x1"}, {"parentHash": "0x" + "00" * 32}, {"hash": "0x12"}, {"hash": None}, {"number": "abc"}],
)
def test_a_block_that_follows_from_nothing_shows_no_height(stub: Callable[..., Stub], odd: dict[str, Any]) -> None:
    liar = stub(height=100)
    whole = liar.block
    liar.block = lambda height: whole(height) | odd  # type: ignore[method-assign]
    with ChainClient([liar.url]) as client, pytest.raises(ChainUnreachable, match="newest block is 100, and doesn't"):
        client.height()


def test_a_height_is_shown_once(stub: Callable[..., Stub]) -> None:
    """What a quiet block costs stays a question for the height: blocks are asked for at the first and after a jump."""
    node = stub(height=100)
    with ChainClient([node.url]) as client:
        for height in range(100, 140):
            node.height = height
            assert client.height() == height
        assert node.num_requests == 40 + 1
        node.height = 200
        assert client.height() == 200
        assert node.num_requests == 40 + 1 + 2


@pytest.mark.parametrize("liars_place", [0, 1])
@pytest.mark.parametrize("is_forged", [False, True])
def test_a_liar_ahead_does_not_lock_the_honest_one_out(
    stub: Callable[..., Stub], monkeypatch: pytest.MonkeyPatch, liars_place: int, is_forged: bool
) -> None:
    """It says a height far ahead, shows made-up blocks for it or none, and answers what is asked by an error."""
    monkeypatch.setattr("contracts.bindings.client._COMPARE_SECONDS", 0.0)
    monkeypatch.setattr("contracts.bindings.lineage.ANCHOR_SECONDS", 0.0)
    honest, liar = stub(height=100), stub(height=100)
    liar.told, liar.forged = FUTURE, is_forged
    liar.errors["eth_getBalance"] = INTERNAL
    urls = [honest.url]
    urls.insert(liars_place, liar.url)
    with ChainClient(urls) as client:
        assert client.height() in ((100, FUTURE) if is_forged else (100,)), "made-up blocks are found out by errors"
        for height in range(100, 140):
            honest.height = height
            assert client.balance(ADDRESS) == 5
            assert client.height() == height


def test_what_a_liar_shows_no_more_is_held_against_nobody(
    stub: Callable[..., Stub], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("contracts.bindings.client._COMPARE_SECONDS", 0.0)
    honest, liar = stub(height=100), stub(height=100)
    liar.told, liar.forged = FUTURE, True
    with ChainClient([honest.url, liar.url]) as client:
        assert client.height() == FUTURE
        liar.told, liar.forged, honest.height, liar.height = None, False, 105, 105
        assert client.height() == 105
        assert client.balance(ADDRESS) == 5
        assert honest.asked.count("eth_getBalance") == 1


def test_an_error_of_ours_does_not_make_another_history_ours(
    stub: Callable[..., Stub], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who is behind is asked when who is ahead has only errors, but for one history."""
    ours, other = stub(height=100, history=1), stub(height=90, history=2)
    ours.errors["eth_getBalance"] = INTERNAL
    with ChainClient([ours.url, other.url]) as client:
        assert client.height() == 100
        with pytest.raises(RpcError, match="internal"):
            client.balance(ADDRESS)
        assert client.height() == 100


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


def test_a_block_that_can_t_be_read_has_its_url_passed_over(stub: Callable[..., Stub]) -> None:
    liar, up = stub(history=1), stub(history=1)
    whole = liar.answer

    def answer(body: Any) -> Any:
        is_block = not isinstance(body, list) and body["method"] == "eth_getBlockByNumber"
        return {"jsonrpc": "2.0", "id": body["id"], "result": 7} if is_block else whole(body)

    liar.answer = answer  # type: ignore[method-assign]
    with ChainClient([liar.url, up.url]) as client:
        assert client.balance("0x" + "00" * 20) == 5
