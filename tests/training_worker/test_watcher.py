"""A quiet block costs two short questions; whatever changes a run is seen in the next look (case 28)."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from contracts.bindings.client import ChainClient
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

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        type(self).num_asked += asked["method"] == "eth_blockNumber"
        results = {"eth_blockNumber": hex(1_000_000 + self.num_asked // 2), "eth_getLogs": []}
        body = json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": results[asked["method"]]}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

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
        for _ in range(2 * 10):
            watcher._poll()
        latest = watcher.latest()
        assert latest is not None
        num_blocks = latest.height - first.height
        assert num_blocks >= 9
        spent = (client.bytes_sent + client.bytes_received - before) / num_blocks
        assert spent < 2_000, f"{spent:.0f} bytes a block, asked for twice"
    finally:
        client.close()
        server.shutdown()
        server.server_close()
