"""The server: every request split at every byte, answered in order on four connections, and stopping on a fault."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chain.abci import abci_pb2 as pb
from chain.abci import server
from chain.abci.application import ChainApplication
from chain.abci.server import (
    HANDLED_NAMES,
    MAX_WAITING_BYTES,
    TURN_REQUESTS,
    AbciProtocol,
    Handler,
    HandlerFailed,
    serve,
)
from chain.abci.wire import FrameReader, encode_frame
from chain.core.genesis import process_genesis
from chain.store import Store

FLUSH = encode_frame(pb.Request(flush=pb.RequestFlush()).SerializeToString())


class EchoingApplication:
    """Answers with something that names the request."""

    def __init__(self, failing: str = "") -> None:
        self.failing = failing
        self.looked_ahead: list[bytes] = []
        self.pending: set[bytes] = set()

    def get_handler(self, name: str) -> Handler:
        kind = getattr(pb, type(getattr(pb.Response(), name)).__name__)

        def handle(request: Any) -> Any:
            if name == self.failing:
                raise RuntimeError(f"{name} is broken")
            response = kind()
            if name == "check_tx":
                response.data = request.tx
            if name == "finalize_block":
                response.tx_results.extend(pb.ExecTxResult(data=raw[:4]) for raw in request.txs)
            return response

        return handle

    def get_checker(self) -> EchoingApplication:
        return self

    def look_ahead(self, transactions: list[bytes]) -> None:
        self.looked_ahead += transactions

    def is_pending(self, transaction: bytes) -> bool:
        return transaction in self.pending

    def check(self, transaction: bytes) -> tuple[int, bytes]:
        request = pb.RequestCheckTx(tx=transaction)
        return 0, self.get_handler("check_tx")(request).SerializeToString()

    def attach(self, drain: Callable[[], None], resume: Callable[[], None]) -> None:
        self.drain, self.resume = drain, resume


class RecordingTransport(asyncio.WriteTransport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []

    def write(self, data: Any) -> None:
        self.writes.append(bytes(data))


def _connect(application: EchoingApplication, failures: list[BaseException]) -> tuple[AbciProtocol, RecordingTransport]:
    protocol = AbciProtocol(application, failures.append)
    transport = RecordingTransport()
    protocol.connection_made(transport)
    return protocol, transport


def _read(writes: list[bytes]) -> list[pb.Response]:
    return [pb.Response.FromString(message) for message in FrameReader().feed(b"".join(writes))]


def _make_request(name: str) -> bytes:
    request = pb.Request()
    getattr(request, name).SetInParent()
    if name == "echo":
        request.echo.message = "hello"
    if name == "check_tx":
        request.check_tx.tx = b"x" * 200
    return encode_frame(request.SerializeToString())


@pytest.mark.parametrize("name", ["echo", "flush", *HANDLED_NAMES])
def test_request_split_at_every_byte(name: str) -> None:
    frame = _make_request(name)
    for cut in range(len(frame) + 1):
        failures: list[BaseException] = []
        protocol, transport = _connect(EchoingApplication(), failures)
        protocol.data_received(frame[:cut])
        protocol.data_received(frame[cut:] + FLUSH)
        answers = _read(transport.writes)
        assert [answer.WhichOneof("value") for answer in answers] == [name, "flush"]
        assert not failures


def test_answers_of_one_read_are_one_write() -> None:
    protocol, transport = _connect(EchoingApplication(), [])
    protocol.data_received(_make_request("check_tx") * 50 + FLUSH)
    assert len(transport.writes) == 1
    assert len(_read(transport.writes)) == 51


def test_block_of_20_megabytes() -> None:
    request = pb.Request(finalize_block=pb.RequestFinalizeBlock(txs=[b"%04d" % i + bytes(20_000) for i in range(1000)]))
    frame = encode_frame(request.SerializeToString())
    assert len(frame) > 20_000_000
    protocol, transport = _connect(EchoingApplication(), [])
    for start in range(0, len(frame), 65_536):
        protocol.data_received(frame[start : start + 65_536])
    (answer,) = _read(transport.writes)
    assert [result.data for result in answer.finalize_block.tx_results] == [b"%04d" % i for i in range(1000)]


@pytest.mark.parametrize("name", HANDLED_NAMES)
def test_failing_handler_answers_what_came_before_and_stops(name: str, caplog: pytest.LogCaptureFixture) -> None:
    failures: list[BaseException] = []
    protocol, transport = _connect(EchoingApplication(failing=name), failures)
    with pytest.raises(HandlerFailed):
        protocol.data_received(_make_request("echo") + FLUSH + _make_request(name) + FLUSH)
    protocol.data_received(FLUSH)
    assert [answer.WhichOneof("value") for answer in _read(transport.writes)] == ["echo", "flush"]
    assert isinstance(failures[0], HandlerFailed)
    assert f"ABCI {name}: RuntimeError: {name} is broken" in caplog.text


@pytest.mark.parametrize("data", [b"\x03\x12\x01\x00", b"\xff\xff\xff\xff\xff\xff", b"\x00", b"\x02\xb2\x01"])
def test_broken_stream_stops(data: bytes) -> None:
    failures: list[BaseException] = []
    protocol, transport = _connect(EchoingApplication(), failures)
    with pytest.raises(HandlerFailed, match=r"can't be read|doesn't know"):
        protocol.data_received(data)
    assert transport.writes == []
    assert isinstance(failures[0], HandlerFailed)


async def _call(path: Path, frames: list[bytes], num_answers: int) -> list[pb.Response]:
    reader, writer = await asyncio.open_unix_connection(str(path))
    frames_in = FrameReader()
    answers: list[pb.Response] = []
    try:
        writer.write(b"".join(frames))
        async with asyncio.timeout(20):
            while len(answers) < num_answers:
                data = await reader.read(1 << 16)
                assert data, "connection closed early"
                answers += [pb.Response.FromString(message) for message in frames_in.feed(data)]
    finally:
        writer.close()
    return answers


async def test_four_pipelined_connections_keep_their_order(tmp_path: Path) -> None:
    stopping = asyncio.Event()
    path = tmp_path / "s"
    listening = asyncio.Event()
    serving = asyncio.create_task(serve(EchoingApplication(), path, stopping, listening=listening))
    await asyncio.wait_for(listening.wait(), 10)

    def make(connection: int) -> list[bytes]:
        frames = []
        for number in range(2_500):
            check = pb.Request(check_tx=pb.RequestCheckTx(tx=b"%d-%d" % (connection, number)))
            frames.append(encode_frame(check.SerializeToString()))
            if number % 100 == 99:
                frames += [_make_request("query"), FLUSH]
        return frames

    got = await asyncio.gather(*(_call(path, make(connection), 2_550) for connection in range(4)))
    for connection, answers in enumerate(got):
        checks = [answer.check_tx.data for answer in answers if answer.HasField("check_tx")]
        assert checks == [b"%d-%d" % (connection, number) for number in range(2_500)]
        kinds = [answer.WhichOneof("value") for answer in answers]
        assert kinds[100:103] == ["query", "flush", "check_tx"]
    stopping.set()
    await serving


async def test_serve_raises_what_a_handler_raised(tmp_path: Path) -> None:
    path = tmp_path / "s"
    listening = asyncio.Event()
    application = EchoingApplication(failing="commit")
    serving = asyncio.create_task(serve(application, path, asyncio.Event(), listening=listening))
    await asyncio.wait_for(listening.wait(), 10)
    _, writer = await asyncio.open_unix_connection(str(path))
    writer.write(_make_request("commit"))
    with pytest.raises(HandlerFailed, match="commit is broken"):
        async with asyncio.timeout(10):
            await serving
    writer.close()


async def test_10000_checks_in_flight_do_not_hold_up_the_block(
    tmp_path: Path, contracts: Any, app_state: dict[str, Any], alice: Any
) -> None:
    """CometBFT locks its mempool connection between FinalizeBlock and Commit: neither may wait for CheckTx."""
    store = Store(tmp_path / "app")
    application = ChainApplication(store, contracts, process_genesis)
    init = pb.RequestInitChain(chain_id="c", app_state_bytes=json.dumps(app_state).encode())
    application.process_init_chain(init)
    path = tmp_path / "s"
    stopping, listening = asyncio.Event(), asyncio.Event()
    serving = asyncio.create_task(serve(application, path, stopping, listening=listening))
    await listening.wait()
    checks = [pb.Request(check_tx=pb.RequestCheckTx(tx=alice.raw(nonce))) for nonce in range(100)]
    frames = [encode_frame(request.SerializeToString()) for request in checks]
    blocks: list[bytes] = []
    for height in range(1, 11):
        finalize = pb.RequestFinalizeBlock(height=height, hash=bytes(32), proposer_address=bytes(20))
        finalize.txs.append(alice.raw(height - 1))
        for request in (pb.Request(finalize_block=finalize), pb.Request(commit=pb.RequestCommit())):
            blocks += [encode_frame(request.SerializeToString()), FLUSH]
    async with asyncio.timeout(5):
        mempool, consensus = await asyncio.gather(_call(path, frames * 100, 10_000), _call(path, blocks, 40))
    assert len(mempool) == 10_000
    assert store.committed.height == 10
    assert [answer.finalize_block.tx_results[0].code for answer in consensus[::4]] == [0] * 10
    stopping.set()
    await serving
    store.close()


class PausableTransport(RecordingTransport, asyncio.Transport):
    """Remembers whether it reads."""

    is_reading_paused = False

    def pause_reading(self) -> None:
        self.is_reading_paused = True

    def resume_reading(self) -> None:
        self.is_reading_paused = False


async def test_long_row_of_checks_gives_the_loop_back() -> None:
    """What waits on one connection is answered in turns, so a block on another comes in between."""
    mempool, checks = _connect(EchoingApplication(), [])
    consensus, blocks = _connect(EchoingApplication(), [])
    mempool.data_received(_make_request("check_tx") * (3 * TURN_REQUESTS + 1))
    assert len(_read(checks.writes)) == TURN_REQUESTS
    consensus.data_received(_make_request("finalize_block"))
    assert len(_read(blocks.writes)) == 1
    mempool.data_received(FLUSH)
    assert len(_read(checks.writes)) == TURN_REQUESTS, "nobody is served out of turn"
    for turn in (2, 3):
        await asyncio.sleep(0)
        assert len(_read(checks.writes)) == turn * TURN_REQUESTS
    await asyncio.sleep(0)
    assert [answer.WhichOneof("value") for answer in _read(checks.writes)][-2:] == ["check_tx", "flush"]
    assert len(_read(checks.writes)) == 3 * TURN_REQUESTS + 2


def _make_check(transaction: bytes) -> bytes:
    return encode_frame(pb.Request(check_tx=pb.RequestCheckTx(tx=transaction)).SerializeToString())


async def test_pending_check_holds_up_its_own_connection_only() -> None:
    """Answers stay in order, and go on when the check pends no more."""
    application = EchoingApplication()
    application.pending = {b"b"}
    mempool, checks = _connect(application, [])
    consensus, blocks = _connect(application, [])
    mempool.data_received(b"".join(map(_make_check, (b"a", b"b", b"c"))) + FLUSH)
    assert application.looked_ahead == [b"a", b"b", b"c"]
    assert [answer.check_tx.data for answer in _read(checks.writes)] == [b"a"]
    mempool.data_received(_make_check(b"d"))
    mempool.resume()
    await asyncio.sleep(0)
    assert len(_read(checks.writes)) == 1, "it still pends"
    consensus.data_received(_make_request("finalize_block"))
    assert len(_read(blocks.writes)) == 1
    application.pending = {b"d"}
    mempool.resume()
    await asyncio.sleep(0)
    got = _read(checks.writes)
    assert [answer.check_tx.data for answer in got[:3]] == [b"a", b"b", b"c"]
    assert [answer.WhichOneof("value") for answer in got] == ["check_tx", "check_tx", "check_tx", "flush"]
    application.pending.clear()
    mempool.resume()
    await asyncio.sleep(0)
    assert [answer.check_tx.data for answer in _read(checks.writes)[4:]] == [b"d"]


async def test_pending_check_is_looked_at_again_though_nobody_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "REMINDER_SECONDS", 0.01)
    application = EchoingApplication()
    application.pending = {b"a"}
    mempool, checks = _connect(application, [])
    mempool.data_received(_make_check(b"a"))
    application.pending.clear()
    deadline = time.monotonic() + 10
    while not checks.writes:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)
    assert [answer.check_tx.data for answer in _read(checks.writes)] == [b"a"]


async def test_reading_pauses_while_too_much_waits() -> None:
    failures: list[BaseException] = []
    protocol = AbciProtocol(EchoingApplication(), failures.append)
    transport = PausableTransport()
    protocol.connection_made(transport)
    check = encode_frame(pb.Request(check_tx=pb.RequestCheckTx(tx=bytes(1 << 15))).SerializeToString())
    number = MAX_WAITING_BYTES // len(check) + 2 * TURN_REQUESTS
    protocol.data_received(check * number)
    assert transport.is_reading_paused
    for _ in range(number // TURN_REQUESTS + 1):
        await asyncio.sleep(0)
    assert len(_read(transport.writes)) == number
    assert not transport.is_reading_paused
    assert not failures


async def test_requests_are_taken_in_while_a_block_is_executed(tmp_path: Path) -> None:
    """CometBFT can write, and what it wrote is answered after the block, in order."""
    application = EchoingApplication()
    path, stopping, listening = tmp_path / "s", asyncio.Event(), asyncio.Event()
    serving = asyncio.create_task(serve(application, path, stopping, listening=listening))
    await asyncio.wait_for(listening.wait(), 10)
    with socket.socket(socket.AF_UNIX) as mempool:
        mempool.connect(str(path))
        mempool.setblocking(False)
        mempool.send(_make_request("check_tx"))
        await asyncio.wait_for(asyncio.get_running_loop().sock_recv(mempool, 1 << 16), 10)
        sent = 0
        for _ in range(20):  # nothing is awaited, so the loop reads nothing: only drain does
            sent += _fill(mempool)
            application.drain()
        assert sent > 4 * _fill_size()
        answered = 0
        frames = FrameReader()
        async with asyncio.timeout(20):
            while answered < sent:
                data = await asyncio.get_running_loop().sock_recv(mempool, 1 << 20)
                answered += len(frames.feed(data))
    stopping.set()
    await serving


def _fill(connection: socket.socket) -> int:
    """Send checks until the socket takes no more; return how many."""
    check = _make_request("check_tx")
    sent = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            assert connection.send(check) == len(check)
            sent += 1
    return sent


def _fill_size() -> int:
    """Return how many checks a socket takes that nobody reads."""
    near, far = socket.socketpair()
    with near, far:
        near.setblocking(False)
        return _fill(near)
