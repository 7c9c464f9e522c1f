"""A quiet block costs two short questions; whatever changes a run is seen in the next look (case 28)."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from contracts.bindings.client import ChainClient
from contracts.bindings.errors import ContractError
from contracts.bindings.readers import TrainingReader
from training.worker.watcher import WHOLE_LOOK_BLOCKS, Watcher

QUIET_BLOCKS = 40


def _count_looks(watcher: Watcher) -> list[int]:
    """Note the height of every whole look."""
    heights: list[int] = []
    look = watcher.look

    def counted() -> Any:
        view = look()
        heights.append(view.height)
        return view

    watcher.look = counted  # type: ignore[method-assign]
    return heights


def test_a_quiet_run_is_read_whole_once_in_a_while_only(net: Any) -> None:
    net.create_run(minMembers=3)
    ports = net.worker("ann").ports
    watcher = Watcher(ports, net.run, ports.address, poll_seconds=0.002)
    looks = _count_looks(watcher)
    watcher.start()
    try:
        first = watcher.wait_for_newer(None, 5)
        assert first is not None
        net.wait_for(lambda: watcher.latest().height >= first.height + QUIET_BLOCKS)  # type: ignore[union-attr]
    finally:
        watcher.stop(5)
    assert len(looks) <= 2 + QUIET_BLOCKS // WHOLE_LOOK_BLOCKS


def test_what_changes_a_run_is_in_the_next_view(net: Any) -> None:
    """Joining, showing the root, opening, closing by a timer, settling: each without waiting for a whole look."""
    net.create_run(minMembers=1, roundBlocks=6, attestBlocks=4)
    ports = net.worker("ann").ports
    watcher = Watcher(ports, net.run, ports.address, poll_seconds=0.001)
    watcher.start()
    try:
        view = watcher.wait_for_newer(None, 5)
        ports.send("join", net.run, net.info().recipe_digest, ports.address, "test")
        ports.send("ready", net.run, net.info().head_root)
        num_compared = 0
        for _ in range(60):
            view = watcher.wait_for_newer(view, 5)
            assert view is not None
            with net.chain.lock:
                now = net.chain.inner.height
                topic = net.run.to_bytes(32, "big")
                is_quiet = not net.chain.has_events("Training", topic, now, now)  # nothing in the block being made
                if view.height == now - 1 and is_quiet:
                    num_compared += 1
                    run = net.info()
                    assert (view.run.num_opened, view.run.num_settled) == (run.num_opened, run.num_settled)
                    assert view.member == net.chain.read("Training", "member", (net.run, ports.address))
                    for index, seen in view.rounds.items():
                        assert seen == net.chain.read("Training", "round", (net.run, index))
        assert view is not None
        assert view.run.num_settled >= 2, "rounds were VOID by their timers meanwhile"
        assert num_compared >= 10
    finally:
        watcher.stop(5)


def test_a_chain_that_answers_and_stands_still_is_said_once(
    net: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("training.worker.watcher.STILL_SECONDS", 0.2)
    net.chain.block_seconds = 3600.0
    net.create_run(minMembers=1)
    ports = net.worker("ann").ports
    watcher = Watcher(ports, net.run, ports.address, poll_seconds=0.002)
    with caplog.at_level("INFO", logger="trainer"):
        watcher.start()
        try:
            first = watcher.wait_for_newer(None, 5)
            net.wait_for(lambda: "it answers and stands still" in caplog.text)
            with net.chain.lock:
                assert caplog.text.count("stands still") == 1
                net.chain.inner.advance()
            assert watcher.wait_for_newer(first, 5) is not first
            net.wait_for(lambda: "chain: blocks come again" in caplog.text)
        finally:
            watcher.stop(5)


def test_three_hundred_transactions_in_a_block_and_a_socket_cut_are_caught_up_with(net: Any) -> None:
    """CASES 26: nothing hangs on an event that was heard; what was missed is read from the blocks' state."""
    net.chain.block_seconds = 3600.0  # blocks are made by hand below
    net.create_run(minMembers=1, numRounds=40)
    ports = net.worker("ann").ports
    watcher = Watcher(ports, net.run, ports.address, poll_seconds=0.002)
    watcher.start()
    try:
        with net.chain.lock:
            net.chain.inner.advance()
        first = watcher.wait_for_newer(None, 5)
        assert first is not None
        ports.is_cut = True
        net.wait_for(lambda: watcher.get_silence_seconds() > 0)
        with net.chain.lock:
            for number in range(300):
                ports.memory.execute(f"member {number}", "fund", (net.run,), 10**15)
            ports.memory.execute("ann", "join", (net.run, net.info().recipe_digest, ports.address, "test"), 10**18)
            ports.memory.execute("ann", "ready", (net.run, net.info().head_root), 0)
            net.chain.inner.advance(150)
        ports.is_cut = False
        view = watcher.wait_for_newer(first, 5)
        assert view is not None
        assert view.height >= first.height + 150
        assert view.run == net.info()
        assert view.run.escrow == first.run.escrow + 300 * 10**15
        assert view.member == net.chain.read("Training", "member", (net.run, ports.address))
        assert view.rounds == {
            index: net.chain.read("Training", "round", (net.run, index))
            for index in range(view.run.num_settled, view.run.num_opened)
        }
    finally:
        watcher.stop(5)


class _Quiet(BaseHTTPRequestHandler):
    """A node at whose chain nothing happens to the run: a new height every other question."""

    protocol_version = "HTTP/1.1"
    num_asked = 0
    num_blocks_asked = 0

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        answers = [self.answer(one) for one in (asked if isinstance(asked, list) else [asked])]
        body = json.dumps(answers if isinstance(asked, list) else answers[0]).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Answer one request."""
        if asked["method"] == "eth_getBlockByNumber":
            type(self).num_blocks_asked += 1
            height = int(asked["params"][0], 16)
            result: Any = {"number": hex(height), "hash": f"0x{height:064x}", "parentHash": f"0x{height - 1:064x}"}
        else:
            type(self).num_asked += asked["method"] == "eth_blockNumber"
            told = {"eth_blockNumber": hex(1_000_000 + self.num_asked // 2), "eth_getLogs": []}
            result = told[asked["method"]]
        return {"jsonrpc": "2.0", "id": asked["id"], "result": result}

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def test_a_quiet_block_costs_less_than_two_kilobytes_at_the_socket(net: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    net.create_run(minMembers=1)
    ports = net.worker("ann").ports
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Quiet)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    client = ChainClient([f"http://127.0.0.1:{server.server_port}"])
    try:
        watcher = Watcher(client, net.run, ports.address, poll_seconds=0.001)
        monkeypatch.setattr(client, "training", ports.training)
        watcher._poll()
        first, before = watcher.latest(), client.bytes_sent + client.bytes_received
        assert first is not None
        num_blocks_asked = _Quiet.num_blocks_asked
        for _ in range(2 * 20):
            watcher._poll()
        latest = watcher.latest()
        assert latest is not None
        num_blocks = latest.height - first.height
        assert num_blocks >= 19
        assert num_blocks_asked == _Quiet.num_blocks_asked, "a block is asked for at the first, none after it"
        spent = (client.bytes_sent + client.bytes_received - before) / num_blocks
        assert spent < 2_000, f"{spent:.0f} bytes a block, asked for twice"
    finally:
        client.close()
        server.shutdown()
        server.server_close()


class _Liar(BaseHTTPRequestHandler):
    """A chain node before real contracts in memory; it says of some things what it is told to."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        answers = [self.answer(one) for one in (asked if isinstance(asked, list) else [asked])]
        odd = self.server.odd_answer  # type: ignore[attr-defined]
        body = json.dumps(answers if isinstance(asked, list) else answers[0]).encode() if odd is None else odd
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Answer one request."""
        server: Any = self.server
        newest = server.height()
        if asked["method"] == "eth_blockNumber":
            return {"jsonrpc": "2.0", "id": asked["id"], "result": hex(newest + server.num_false_blocks)}
        if asked["method"] == "eth_getLogs":
            return {"jsonrpc": "2.0", "id": asked["id"], "result": [{}]}
        height = int(asked["params"][0], 16)
        block = {"number": hex(height), "hash": f"0x{height:064x}", "parentHash": f"0x{height - 1:064x}"}
        is_there = height <= newest + (server.num_false_blocks if server.is_forging else 0)
        return {"jsonrpc": "2.0", "id": asked["id"], "result": block if is_there else None}

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def lied_to(net: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, Watcher]]:
    """A node that may lie, and a watcher that asks it."""
    net.create_run(minMembers=1)
    ports = net.worker("ann").ports
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), _Liar)
    server.height, server.num_false_blocks, server.is_forging, server.odd_answer = ports.height, 0, False, None
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    client = ChainClient([f"http://127.0.0.1:{server.server_port}"])
    monkeypatch.setattr(client, "training", ports.training)
    watcher = Watcher(client, net.run, ports.address, poll_seconds=0.002)
    watcher.start()
    try:
        yield server, watcher
    finally:
        watcher.stop(5)
        client.close()
        server.shutdown()
        server.server_close()


def _height(watcher: Watcher) -> int:
    view = watcher.latest()
    return -1 if view is None else view.height


@pytest.mark.parametrize("answer", [b"[]", b"{}", b"null", b'{"id":77,"result":"0x1"}', b'[{"id":1,"result":"0x1"}]'])
def test_an_odd_answer_is_silence_and_ends_with_the_next_one(
    net: Any, lied_to: tuple[Any, Watcher], answer: bytes
) -> None:
    server, watcher = lied_to
    net.wait_for(lambda: watcher.latest() is not None)
    server.odd_answer = answer
    net.wait_for(lambda: watcher.get_silence_seconds() > 0)
    server.odd_answer = None
    seen = _height(watcher)
    net.wait_for(lambda: _height(watcher) > seen)
    assert watcher.get_silence_seconds() == 0


def test_a_height_that_no_block_bears_out_is_silence(net: Any, lied_to: tuple[Any, Watcher]) -> None:
    server, watcher = lied_to
    net.wait_for(lambda: watcher.latest() is not None)
    server.num_false_blocks = 2**48
    net.wait_for(lambda: watcher.get_silence_seconds() > 0)
    seen = _height(watcher)
    assert seen <= server.height()
    server.num_false_blocks = 0
    net.wait_for(lambda: _height(watcher) > seen)


@pytest.mark.parametrize(("num_false_blocks", "is_forging"), [(10, False), (2**48, True)])
def test_a_height_that_was_believed_and_false_is_given_up(
    net: Any,
    lied_to: tuple[Any, Watcher],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    num_false_blocks: int,
    is_forging: bool,
) -> None:
    """A few blocks, for which nobody asks, or made-up ones: the truth is below what was seen, for good."""
    monkeypatch.setattr("training.worker.watcher.FALL_SECONDS", 0.3)
    server, watcher = lied_to
    net.wait_for(lambda: watcher.latest() is not None)
    net.chain.block_seconds = 3600.0  # the truth can't catch up
    server.num_false_blocks, server.is_forging = num_false_blocks, is_forging
    net.wait_for(lambda: _height(watcher) > server.height())
    with caplog.at_level("WARNING", logger="trainer"):
        server.num_false_blocks = 0
        net.wait_for(lambda: _height(watcher) == server.height())
        net.wait_for(lambda: "was false: for 0 s the newest has been below it" in caplog.text)
    seen = _height(watcher)
    with net.chain.lock:
        net.chain.inner.advance()
    net.wait_for(lambda: _height(watcher) > seen)


def test_a_node_that_lags_for_a_moment_is_ignored(net: Any, lied_to: tuple[Any, Watcher]) -> None:
    server, watcher = lied_to
    net.wait_for(lambda: watcher.latest() is not None)
    seen = _height(watcher)
    server.num_false_blocks = -5
    heights = [_height(watcher)]

    def has_grown() -> bool:
        heights.append(_height(watcher))
        return bool(server.height() >= seen + 20)

    net.wait_for(has_grown)
    assert heights == sorted(heights)
    server.num_false_blocks = 0
    net.wait_for(lambda: _height(watcher) > seen)


def test_a_node_that_knows_no_such_run_any_more_is_silence(
    net: Any, lied_to: tuple[Any, Watcher], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is another one behind the same URL, which has just begun; the run was there."""
    _, watcher = lied_to
    net.wait_for(lambda: watcher.latest() is not None)
    with monkeypatch.context() as patch:

        def refuse(*_: Any) -> Any:
            raise ContractError("UnknownRun", {}, "UnknownRun: got 1")

        patch.setattr(watcher._chain, "training", TrainingReader(refuse))
        net.wait_for(lambda: watcher.get_silence_seconds() > 0)
    seen = _height(watcher)
    net.wait_for(lambda: _height(watcher) > seen)
