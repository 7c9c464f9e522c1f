"""Two chains for the tests of JSON-RPC.

``solo``: the real application and the real server process, without consensus: blocks come when a test says so, or
as soon as a transaction is there.  ``devnet``: ``chain-node start`` with the real CometBFT, once a session.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from eth_account import Account
from eth_account.signers.local import LocalAccount

from chain.abci import abci_pb2 as pb
from chain.abci.application import ChainApplication
from chain.core.hashing import keccak256
from chain.home import load_listening
from chain.store import Store
from chain.system import CONTRACTS, process_system_genesis
from contracts.bindings.client import ChainClient
from contracts.bindings.errors import ChainUnreachable
from contracts.bindings.sender import Sender

sys.path.insert(0, str(Path(__file__).parent))

FAUCET: LocalAccount = Account.from_key(b"\x11" * 32)
"""Rich in every test's genesis."""
FAUCET_WEI = 10**24
EVM_CHAIN_ID = 4242
EPOCH_BLOCKS = 20
START_SECONDS = 60.0
"""Until a process must be up."""
STOP_SECONDS = 15.0
"""Until it must be gone."""


def wait_until(condition: Callable[[], bool], seconds: float, what: str) -> None:
    """Poll a condition until the deadline."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds:.0f} s: {what}"
        time.sleep(0.02)


class SoloChain:
    """Drives the application as CometBFT would, and answers CometBFT's JSON-RPC for the server under test."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.store = Store(home / "app", map_bytes=64 << 20)
        self.application = ChainApplication(self.store, CONTRACTS, process_system_genesis)
        self.lock = threading.Lock()
        self.pool: dict[bytes, bytes] = {}
        self.seen: set[bytes] = set()
        self.is_automatic = True
        self.is_silent = False
        self.time = 1_700_000_000
        alloc = {FAUCET.address: str(FAUCET_WEI)}
        state = {"evmChainId": EVM_CHAIN_ID, "alloc": alloc, "storageEpochBlocks": EPOCH_BLOCKS}
        self.application.process_init_chain(
            pb.RequestInitChain(chain_id="solo-1", app_state_bytes=json.dumps(state).encode())
        )
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._make_handler())
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True)
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    @property
    def height(self) -> int:
        return int(self.store.committed.height)

    def mine(self, num_blocks: int = 1) -> None:
        """Make blocks out of what waits."""
        with self.lock:
            for _ in range(num_blocks):
                self._mine()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join(STOP_SECONDS)
        self.store.close()

    def _mine(self) -> None:
        height = self.height + 1
        self.time += 1
        proposal = self.application.process_prepare_proposal(
            pb.RequestPrepareProposal(height=height, txs=list(self.pool.values()), max_tx_bytes=4 << 20)
        )
        self.application.process_finalize_block(
            pb.RequestFinalizeBlock(
                height=height,
                txs=proposal.txs,
                hash=height.to_bytes(32, "big"),
                proposer_address=b"\x77" * 20,
                time={"seconds": self.time},
            )
        )
        self.application.process_commit(pb.RequestCommit())
        for raw in proposal.txs:
            self.pool.pop(keccak256(raw), None)

    def _make_handler(chain) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if chain.is_silent:
                    self.send_error(503)
                    return
                with chain.lock:
                    answer = json.dumps({"jsonrpc": "2.0", "id": 1, **chain._answer(body["method"], body["params"])})
                self.send_response(200)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer.encode())

            def log_message(self, *args: object) -> None:
                pass

        return Handler

    def _answer(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        if method == "broadcast_tx_sync":
            return self._broadcast(base64.b64decode(params["tx"]))
        if method == "abci_query":
            answer = self.application.process_query(
                pb.RequestQuery(
                    path=params["path"],
                    data=bytes.fromhex(params["data"]),
                    prove=params.get("prove", False),
                    height=int(params.get("height", 0)),
                )
            )
            value = base64.b64encode(answer.value).decode()
            response = {"code": answer.code, "log": answer.log, "value": value, "height": str(answer.height)}
            ops = [{"data": base64.b64encode(op.data).decode()} for op in answer.proof_ops.ops]
            return {"result": {"response": {**response, "proofOps": {"ops": ops} if ops else None}}}
        if method == "status":
            return {"result": {"sync_info": {"latest_block_height": str(self.height), "catching_up": False}}}
        return {"result": {"n_peers": "0"}}

    def _broadcast(self, raw: bytes) -> dict[str, Any]:
        if raw in self.seen:
            return {"error": {"code": -32603, "message": "Internal error", "data": "tx already exists in cache"}}
        checked = self.application.process_check_tx(pb.RequestCheckTx(tx=raw))
        if checked.code == 0:
            self.seen.add(raw)
            self.pool[keccak256(raw)] = raw
            if self.is_automatic:
                self._mine()
        return {"result": {"code": checked.code, "log": checked.log, "codespace": checked.codespace}}


class RpcProcess:
    """The server under test, a process of its own: LMDB must not be opened twice in one."""

    def __init__(self, home: Path, cometbft_url: str, log: Path, port: int = 0) -> None:
        program = (
            "import logging, sys; from pathlib import Path; from chain.rpc.server import run;"
            "logging.basicConfig(level=logging.INFO);"
            f"run(Path(sys.argv[1]), sys.argv[2], '127.0.0.1', {port})"
        )
        self.log = log
        with log.open("w") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-c", program, str(home), cometbft_url],
                stdout=file,
                stderr=subprocess.STDOUT,
                process_group=0,
            )
        wait_until(self._is_up, START_SECONDS, f"the server is up; its log: {log}")
        found = re.search(r"http://127\.0\.0\.1:\d+", log.read_text())
        assert found is not None
        self.url = found.group()

    def stop(self) -> int:
        """Stop it as a supervisor would."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait(STOP_SECONDS)

    def _is_up(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        return "http://127.0.0.1" in self.log.read_text()


@dataclass(frozen=True, slots=True, kw_only=True)
class Solo:
    """The chain without consensus and the server that reads it."""

    chain: SoloChain
    url: str
    client: ChainClient
    faucet: Sender


@pytest.fixture(scope="session")
def _solo() -> Iterator[Solo]:
    with tempfile.TemporaryDirectory(prefix="archipelago-solo-") as folder:
        chain = SoloChain(Path(folder))
        server = None
        try:
            server = RpcProcess(Path(folder), chain.url, Path(folder) / "rpc.log")
            client = ChainClient([server.url])
            yield Solo(chain=chain, url=server.url, client=client, faucet=Sender(client, bytes(FAUCET.key)))
            client.close()
        finally:
            if server is not None:
                server.stop()
            chain.close()


@pytest.fixture
def solo(_solo: Solo) -> Iterator[Solo]:
    """The session's chain, mining as transactions come; a test may switch that off for itself."""
    yield _solo
    _solo.chain.is_automatic = True
    _solo.chain.is_silent = False
    _solo.chain.mine()


@pytest.fixture
def rpc_process() -> Iterator[Callable[..., RpcProcess]]:
    """Return a function that starts another server; all are stopped at the end."""
    with _starting() as start:
        yield start


@pytest.fixture(scope="module")
def start_rpc() -> Iterator[Callable[..., RpcProcess]]:
    """The same, for servers that a module's tests share."""
    with _starting() as start:
        yield start


@contextlib.contextmanager
def _starting() -> Iterator[Callable[..., RpcProcess]]:
    started: list[RpcProcess] = []

    def start(*arguments: Any) -> RpcProcess:
        started.append(RpcProcess(*arguments))
        return started[-1]

    try:
        yield start
    finally:
        for each in started:
            if each.process.poll() is None:
                each.stop()


@pytest.fixture(scope="session")
def node_environment() -> dict[str, str]:
    """The environment of chain-node: where CometBFT is comes from outside."""
    return dict(os.environ)


@dataclass(frozen=True, slots=True, kw_only=True)
class Devnet:
    """One real validator."""

    url: str
    home: Path
    process: subprocess.Popen[bytes]

    @property
    def core_url(self) -> str:
        """Where CometBFT listens now, which is beside the configured port when another node has that."""
        listening = load_listening(self.home)
        assert listening is not None, self.home
        return listening.cometbft_url


@pytest.fixture(scope="session")
def devnet(node_environment: dict[str, str]) -> Iterator[Devnet]:
    """``chain-node init`` and ``start`` on free ports, with FAUCET in genesis."""
    with tempfile.TemporaryDirectory(prefix="archipelago-devnet-") as folder:
        home = Path(folder) / "node"
        alloc = Path(folder) / "alloc.json"
        alloc.write_text(json.dumps({FAUCET.address: str(FAUCET_WEI)}))
        command = [sys.executable, "-m", "chain.cli"]
        init = [*command, "init", "--home", str(home), "--chain-id", "rpc-test-1", "--alloc", str(alloc)]
        subprocess.run(init, check=True, capture_output=True, timeout=START_SECONDS, env=node_environment)
        port = _free_port()
        with (Path(folder) / "node.log").open("wb") as log:
            process = subprocess.Popen(
                [*command, "start", "--home", str(home), "--rpc-listen", f"127.0.0.1:{port}"],
                stdout=log,
                stderr=subprocess.STDOUT,
                process_group=0,
                env=node_environment,
            )
        try:
            url = f"http://127.0.0.1:{port}"
            client = ChainClient([url], timeout_seconds=2.0)
            wait_until(
                lambda: _has_blocks(client, process, Path(folder) / "node.log"),
                START_SECONDS,
                "the devnet makes blocks",
            )
            client.close()
            yield Devnet(url=url, home=home, process=process)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(STOP_SECONDS)


def _has_blocks(client: ChainClient, process: subprocess.Popen[bytes], log: Path) -> bool:
    assert process.poll() is None, log.read_text(errors="replace")
    try:
        return client.height() >= 1
    except ChainUnreachable:
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
