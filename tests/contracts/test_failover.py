"""Several chain URLs: one down, hanging, broken or lagging is survived; a foreign chain is refused."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from rpc_stub import ADDRESS, INTERNAL, Stub

from contracts.bindings.client import ChainClient
from contracts.bindings.errors import ChainUnreachable, ContractError, NotJsonRpc, RpcError, WrongChain


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


@pytest.mark.parametrize("num_calls", [1, 2])
def test_a_refused_batch_is_answered_by_one_error(stub: Callable[..., Stub], num_calls: int) -> None:
    node = stub()
    node.text = json.dumps({"id": None, "error": {"code": -32600, "message": "batch too large"}}).encode()
    with ChainClient([node.url]) as client, pytest.raises(RpcError, match="batch too large"):
        client.batch([("eth_chainId", ())] * num_calls)


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


def test_a_block_that_can_t_be_read_has_its_url_passed_over(stub: Callable[..., Stub]) -> None:
    liar, up = stub(history=1), stub(history=1)
    whole = liar.answer

    def answer(body: Any) -> Any:
        is_block = not isinstance(body, list) and body["method"] == "eth_getBlockByNumber"
        return {"jsonrpc": "2.0", "id": body["id"], "result": 7} if is_block else whole(body)

    liar.answer = answer  # type: ignore[method-assign]
    with ChainClient([liar.url, up.url]) as client:
        assert client.balance("0x" + "00" * 20) == 5
