"""The server stops and comes back while clients work (cases 20 and 27)."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from eth_account import Account

from contracts.bindings.client import ChainClient
from contracts.bindings.errors import ChainUnreachable
from contracts.bindings.sender import Outcome, Sender

pytestmark = pytest.mark.integration

FAUCET_KEY = b"\x11" * 32


def test_server_ends_quickly_under_open_connections_and_a_commit_survives_its_restart(
    solo: Any, rpc_process: Any, tmp_path: Path
) -> None:
    first = rpc_process(solo.chain.home, solo.chain.url, tmp_path / "first.log")
    client = ChainClient([first.url], timeout_seconds=2.0)
    sender = Sender(client, FAUCET_KEY)
    nonce = client.nonce(sender.address)
    started = time.monotonic()
    assert first.stop() == 0
    assert time.monotonic() - started < 10
    with pytest.raises(ChainUnreachable):
        client.height()

    outcomes: list[Outcome] = []
    to = Account.create().address
    thread = threading.Thread(target=lambda: outcomes.append(sender.transfer(to, 9, deadline_seconds=60)))
    thread.start()
    second = rpc_process(solo.chain.home, solo.chain.url, tmp_path / "second.log", int(first.url.rpartition(":")[2]))
    thread.join(60)
    assert len(outcomes) == 1
    assert client.balance(to) == 9
    assert client.nonce(sender.address) == nonce + 1
    assert second.url == first.url
    client.close()


def test_server_may_start_before_the_chain(rpc_process: Any, tmp_path: Path) -> None:
    early = rpc_process(tmp_path / "nothing", "http://127.0.0.1:1", tmp_path / "early.log")
    with (
        ChainClient([early.url]) as client,
        pytest.raises(ChainUnreachable, match=r"no chain database at .*; next: .chain-node start"),
    ):
        client.height()


def test_requests_leave_no_line_in_the_log(solo: Any, rpc_process: Any, tmp_path: Path) -> None:
    server = rpc_process(solo.chain.home, solo.chain.url, tmp_path / "quiet.log")
    before = server.log.read_text()
    with ChainClient([server.url]) as client:
        for _ in range(20):
            client.height()
    host, _, port = server.url.removeprefix("http://").partition(":")
    for begun in (b"POST / HT", b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{"):
        with socket.create_connection((host, int(port)), timeout=10) as cut_off:
            cut_off.sendall(begun)
    with ChainClient([server.url]) as client:
        client.height()
    assert server.log.read_text() == before
