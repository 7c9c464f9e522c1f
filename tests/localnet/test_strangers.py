"""Somebody else's node on our port is not taken for ours, and other ports are chosen (a race that people met)."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from contracts.bindings.client import ChainClient
from localnet import devnet as devnet_module
from localnet.cli import send_from_faucet
from localnet.core.config import DevnetConfig
from localnet.core.errors import StrangerAnswers
from localnet.devnet import Devnet, hold_home
from localnet.identity import check_is_ours
from localnet.ports import choose_port
from localnet.process import get_own_id
from localnet.record import DevnetRecord, Phase
from localnet.stopping import StopRequest
from localnet.supervisor import Supervisor

STRANGERS_ID = 31_337
"""The chain id of everybody's first development node."""


class StrangerHandler(BaseHTTPRequestHandler):
    """An Ethereum node of another chain, which also has many blocks."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        answers = [self.answer(one) for one in (asked if isinstance(asked, list) else [asked])]
        body = json.dumps(answers if isinstance(asked, list) else answers[0]).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        result = {"eth_chainId": hex(STRANGERS_ID), "eth_blockNumber": hex(1000)}.get(request["method"], "0x0")
        return {"jsonrpc": "2.0", "id": request["id"], "result": result}

    def log_message(self, format: str, *args: object) -> None:
        return


@pytest.fixture
def stranger() -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), StrangerHandler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    thread.join()
    server.server_close()


def test_invalid_chain_id_is_refused_with_both(stranger: int) -> None:
    url = f"http://127.0.0.1:{stranger}"
    client = ChainClient([url])
    with pytest.raises(StrangerAnswers, match=rf"id {STRANGERS_ID}, expected \d+ \(archipelago-cafe\); next: "):
        check_is_ours(client, url, "archipelago-cafe")
    client.close()


def test_faucet_sends_nothing_to_a_strangers_chain(stranger: int, tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{stranger}"
    record = DevnetRecord(
        home=str(tmp_path),
        phase=Phase.READY,
        supervisor=get_own_id(),
        processes=(),
        chain_id="archipelago-cafe",
        rpc_urls=(url,),
        public_urls=(url,),
        storage_urls=(),
        faucet_key=str(tmp_path / "there-is-none.key"),
    )
    with pytest.raises(StrangerAnswers):
        send_from_faucet(record, "0x" + "ab" * 20, 1)


@pytest.mark.integration
def test_ports_taken_between_look_and_use_are_given_up(
    stranger: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as squatter:
        squatter.bind(("127.0.0.1", 0))
        squatter.listen()
        late = iter((stranger, None, squatter.getsockname()[1]))

        def choose_late(host: str, preferred: int, taken: Any = ()) -> int:
            """First JSON-RPC, then (the second try at it passes) the store: the look came too early."""
            return next(late, None) or choose_port(host, preferred, taken)

        monkeypatch.setattr(devnet_module, "choose_port", choose_late)
        said: list[str] = []
        with hold_home(tmp_path), Supervisor(logs=tmp_path / "logs") as supervisor:
            net = Devnet(DevnetConfig(home=tmp_path, num_storage=1), supervisor, StopRequest(), said.append)
            record = net.start()
            client = ChainClient([record.rpc_url])
            check_is_ours(client, record.rpc_url, record.chain_id)
            assert len(client.storage.committee(client.storage.epoch())) == 1
            client.close()
        assert record.rpc_url != f"http://127.0.0.1:{stranger}"
        assert record.storage_urls[0].rpartition(":")[2] != str(squatter.getsockname()[1])
        assert sum("meanwhile" in line for line in said) == 2, said
