"""Validators for the chain's benchmarks: CometBFT with our application, or with its own kvstore, on this machine.

Both run the same binary, configuration and number of validators, so what differs is the application.
"""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from benchmarks.chain_signing import CHAIN_ID
from chain.cometbft import Timing, find_cometbft
from chain.home import Addresses, create_network
from chain.ports import find_free_ports
from chain.settings import NodeSettings, save_settings
from chain.store import Reader

ROOT = Path(__file__).resolve().parent.parent
DEADLINE_SECONDS = 120.0
POLL_SECONDS = 0.02
_BLOCKS_AT_ONCE = 20
"""CometBFT answers no more headers in one call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Validator:
    """One of the network."""

    home: Path
    """Its directory."""
    cometbft: str
    """host:port of CometBFT's RPC."""
    json_rpc: str
    """host:port of Ethereum's JSON-RPC; empty with kvstore, and where none was asked for."""
    process: subprocess.Popen[bytes]
    """Its supervisor, or with kvstore CometBFT itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Validators that make blocks."""

    validators: tuple[Validator, ...]
    """All of them; the first one is asked for blocks."""

    def read_cpu_seconds(self) -> dict[str, float]:
        """Return the processor time of all validators so far, by kind of process: abci, cometbft, rpc, start."""
        seconds: dict[str, float] = {}
        for validator in self.validators:
            supervisor = psutil.Process(validator.process.pid)
            for process in (supervisor, *supervisor.children(recursive=True)):
                times = process.cpu_times()
                name = _name(process)
                seconds[name] = seconds.get(name, 0.0) + times.user + times.system
        return seconds

    def count_successes(self) -> int:
        """Return how many transactions our application has executed without failure."""
        with Reader(self.validators[0].home / "app") as reader, reader.snapshot() as snapshot:
            return sum(
                receipt.status for height in range(1, snapshot.height + 1) for receipt in snapshot.receipts(height)
            )


class BlockCounter:
    """Counts the transactions in blocks, each block once."""

    def __init__(self, address: str) -> None:
        """Ask CometBFT at ``address``."""
        self._connection = http.client.HTTPConnection(address, timeout=30)
        self._height = 0
        self.total = 0

    def count(self) -> int:
        """Return the transactions in all blocks that the application has committed."""
        response = fetch(self._connection, "/abci_info")["response"]
        newest = int(response.get("last_block_height", 0))  # /status tells of a block before it is executed
        while self._height < newest:
            last = min(newest, self._height + _BLOCKS_AT_ONCE)
            chain = fetch(self._connection, f"/blockchain?minHeight={self._height + 1}&maxHeight={last}")
            self.total += sum(int(meta["num_txs"]) for meta in chain["block_metas"])
            self._height = last
        return self.total

    def wait_for(self, wanted: int) -> None:
        """Wait until so many are in blocks; raises TimeoutError."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while self.count() < wanted:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.total} of {wanted} transactions after {DEADLINE_SECONDS:.0f} s")
            time.sleep(POLL_SECONDS)


def fetch(connection: http.client.HTTPConnection, path: str) -> dict[str, Any]:
    """Return the result of a call to CometBFT's RPC."""
    connection.request("GET", path)
    result: dict[str, Any] = json.loads(connection.getresponse().read())["result"]
    return result


@contextmanager
def run_network(
    directory: Path,
    app_state: Mapping[str, Any],
    *,
    num_validators: int = 1,
    is_kvstore: bool = False,
    has_json_rpc: bool = False,
) -> Iterator[Network]:
    """Run validators until the block ends; yields when all make blocks."""
    homes = [directory / f"v{index}" for index in range(num_validators)]
    ports = iter(find_free_ports(3 * num_validators))
    addresses = [Addresses(rpc=f"127.0.0.1:{next(ports)}", p2p=f"127.0.0.1:{next(ports)}") for _ in homes]
    create_network(
        homes, chain_id=CHAIN_ID, app_state=app_state, addresses=addresses, timing=Timing(), time=datetime.now(UTC)
    )
    with ExitStack() as stack:
        validators = []
        for home, address in zip(homes, addresses, strict=True):
            save_settings(home, NodeSettings(snapshot_interval_blocks=0))
            json_rpc = f"127.0.0.1:{next(ports)}" if has_json_rpc else ""
            process = stack.enter_context(_start(home, json_rpc, is_kvstore=is_kvstore))
            validators.append(Validator(home=home, cometbft=address.rpc, json_rpc=json_rpc, process=process))
        for validator in validators:
            _wait_for_blocks(validator)
        yield Network(validators=tuple(validators))


def describe_timing() -> str:
    """Say what both sides of a comparison share."""
    return f"timeout_commit {Timing().commit_milliseconds} ms, {os.cpu_count()} cores shared with the load"


@contextmanager
def _start(home: Path, json_rpc: str, *, is_kvstore: bool) -> Iterator[subprocess.Popen[bytes]]:
    if is_kvstore:
        binary = find_cometbft(os.environ.get("COMETBFT_BIN"), ROOT)
        command = [str(binary), "start", "--home", str(home), "--proxy_app", "kvstore"]
    else:
        listen = json_rpc or "127.0.0.1:0"
        command = [sys.executable, "-m", "chain.cli", "start", "--home", str(home), "--rpc-listen", listen]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=ROOT)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_for_blocks(validator: Validator) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while True:
        try:
            connection = http.client.HTTPConnection(validator.cometbft, timeout=5)
            has_blocks = int(fetch(connection, "/status")["sync_info"]["latest_block_height"]) >= 2
            if has_blocks and (not validator.json_rpc or _answers(validator.json_rpc)):
                return
        except (OSError, KeyError):
            pass  # doesn't listen yet
        if validator.process.poll() is not None:
            raise RuntimeError(f"a validator ended with code {validator.process.returncode}: {validator.home}/logs")
        if time.monotonic() > deadline:
            raise TimeoutError(f"no blocks at {validator.cometbft} after {DEADLINE_SECONDS:.0f} s")
        time.sleep(POLL_SECONDS)


def _answers(json_rpc: str) -> bool:
    connection = http.client.HTTPConnection(json_rpc, timeout=5)
    connection.request(
        "POST", "/", b'{"jsonrpc":"2.0","id":1,"method":"eth_chainId"}', {"Content-Type": "application/json"}
    )
    return connection.getresponse().status == http.client.OK


def _name(process: psutil.Process) -> str:
    words = process.cmdline()
    if words and "cometbft" in words[0]:
        return "cometbft"
    return words[3] if len(words) > 3 else words[-1] if words else process.name()
