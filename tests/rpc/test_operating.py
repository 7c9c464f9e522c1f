"""What an operator does at the command line, on a real validator: join, verify, register, leave."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from chain import joining, light_client
from chain.cli import app
from chain.joining import JoinFailed
from contracts.bindings.client import ChainClient
from contracts.bindings.errors import NotJsonRpc

pytestmark = pytest.mark.integration


@pytest.fixture
def dripping_url() -> Iterator[str]:
    """A stranger that answers a space every 50 ms, for 20 s."""
    is_over = threading.Event()
    listener = socket.create_server(("127.0.0.1", 0))

    def drip() -> None:
        sock, _ = listener.accept()
        end = time.monotonic() + 20
        with sock, contextlib.suppress(OSError):
            sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 9000\r\n\r\n")
            while time.monotonic() < end and not is_over.wait(0.05):
                sock.sendall(b" ")

    threading.Thread(target=drip, daemon=True).start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    is_over.set()
    listener.close()


@pytest.mark.parametrize(
    ("module", "command"),
    [(joining, ["join", "--server"]), (light_client, ["verify", "--run", "1", "--chain"])],
    ids=["join", "verify"],
)
def test_bytes_that_drip_hold_no_command(
    module: Any, command: list[str], dripping_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "TIMEOUT_SECONDS", 0.5)
    started = time.monotonic()
    result = CliRunner().invoke(app, [*command, dripping_url])
    assert "no whole answer within 0.5 s" in str(result.exception)
    assert time.monotonic() - started < 15


def test_one_node_under_two_names_is_one_witness(devnet: Any, tmp_path: Path) -> None:
    same = [devnet.core_url, devnet.core_url.replace("127.0.0.1", "localhost")]
    for second in (same[0], same[1]):
        arguments = ["join", "--server", same[0], "--server", second, "--home", str(tmp_path / "h")]
        result = CliRunner().invoke(app, arguments)
        assert isinstance(result.exception, JoinFailed)
        assert "are one node" in str(result.exception)
        assert "one witness, not two; next: give the address of another node" in str(result.exception)
        assert not (tmp_path / "h").exists()
    result = CliRunner().invoke(app, ["join", "--server", same[0], "--home", str(tmp_path / "h")])
    assert result.exit_code == 0
    assert "one node alone vouches for that" in result.output


def test_json_rpc_where_cometbft_is_meant(devnet: Any, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["join", "--server", devnet.url, "--home", str(tmp_path / "h")])
    assert isinstance(result.exception, JoinFailed)
    assert re.search(
        r"is no CometBFT RPC.*next: give --server the port of CometBFT's RPC, 26657", str(result.exception)
    )
    assert not (tmp_path / "h").exists()


def test_cometbft_where_json_rpc_is_meant(devnet: Any) -> None:
    """CometBFT's RPC speaks JSON-RPC as well, and calls every method of ours unknown."""
    result = CliRunner().invoke(app, ["verify", "--chain", devnet.core_url, "--run", "1"])
    assert "has no archipelago_consensus; next: give the URL of a chain node's JSON-RPC (8545)" in str(result.exception)
    with ChainClient([devnet.core_url]) as client, pytest.raises(NotJsonRpc, match="CometBFT's own RPC, perhaps"):
        client.height()


def test_a_block_that_the_node_does_not_keep(devnet: Any) -> None:
    trusted = ["--trust-height", "1000000", "--trust-hash", "ab" * 32]
    result = CliRunner().invoke(app, ["verify", "--chain", devnet.url, "--run", "1", *trusted])
    message = str(result.exception)
    assert message.count("; next: ") == 1, "one next step, not the node's inside ours"
    assert "1000000" in message
