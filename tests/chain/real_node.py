"""A real node under ``chain-node start``, as the tests drive it."""

from __future__ import annotations

import base64
import json
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil

from chain.core.hashing import keccak256
from chain.core.records import Block
from chain.home import load_addresses, load_app_height
from chain.store import Reader

ROOT = Path(__file__).parents[2]
DEADLINE_SECONDS = 60.0
"""For what takes seconds on an idle machine."""


def wait_until(condition: Callable[[], Any], why: str, seconds: float | None = None) -> Any:
    """Return the first true value of a condition, or fail after DEADLINE_SECONDS."""
    seconds = DEADLINE_SECONDS if seconds is None else seconds
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"after {seconds:.0f} s still not: {why}"
        time.sleep(0.02)


class CoreRefused(Exception):
    """CometBFT's RPC answered with an error."""


class Node:
    """One validator under ``chain-node start``."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.addresses, _ = load_addresses(home)
        self.process: subprocess.Popen[str] | None = None

    def start(self, *options: str, rpc_port: int = 0) -> None:
        """Start and wait until it says that it runs."""
        self.spawn(*options, rpc_port=rpc_port)
        self.wait_for_start()

    def wait_for_start(self) -> None:
        """Wait until it says that it runs."""
        process = self.process
        assert process is not None
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, f"no start: {process.communicate(timeout=10)[1]}"
        assert json.loads(line)["chain_id"] == "node-test"

    def spawn(self, *options: str, rpc_port: int = 0) -> subprocess.Popen[str]:
        """Start without waiting."""
        if self.process is not None:
            self.process.communicate(timeout=10)
        command = [sys.executable, "-m", "chain.cli", "start", "--json", "--home", str(self.home)]
        self.process = subprocess.Popen(
            [*command, "--rpc-listen", f"127.0.0.1:{rpc_port}", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        return self.process

    def stop(self) -> int:
        """End it in order and return the exit code; it must take less than ten seconds."""
        process = self.process
        assert process is not None
        self.process = None
        process.send_signal(signal.SIGTERM)
        try:
            process.communicate(timeout=10)
        finally:
            process.kill()
            process.communicate()
        return process.returncode

    def children(self) -> dict[str, psutil.Process]:
        """Return the live children by name."""
        assert self.process is not None
        named = {}
        for child in psutil.Process(self.process.pid).children():
            try:
                words = child.cmdline()
            except psutil.NoSuchProcess:  # ended meanwhile, and its parent may not have looked yet
                continue
            named["cometbft" if words and "cometbft" in words[0] else " ".join(words[3:4])] = child
        return named

    def height(self) -> int:
        """Return the newest durable height of the application."""
        app = load_app_height(self.home)
        return 0 if app is None else app[1]

    def wait_for_height(self, height: int) -> None:
        wait_until(lambda: self.height() >= height, f"height {height}")

    def blocks(self) -> list[Block]:
        """Return all blocks from genesis, checking that they chain."""
        with Reader(self.home / "app") as reader, reader.snapshot() as snapshot:
            blocks = [snapshot.block(height) for height in range(snapshot.height + 1)]
            assert snapshot.block(snapshot.height + 1) is None
        whole = [block for block in blocks if block is not None]
        assert len(whole) == len(blocks)
        for parent, child in pairwise(whole):
            assert child.parent_hash == parent.hash
        return whole

    def call(self, method: str, **params: Any) -> Any:
        """Call CometBFT's RPC."""
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
        request = urllib.request.Request(f"http://{self.addresses.rpc}", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=10) as answer:
            document = json.load(answer)
        if "result" not in document:
            raise CoreRefused(str(document.get("error")))
        return document["result"]

    def send(self, raw: bytes) -> Any:
        return self.call("broadcast_tx_sync", tx=base64.b64encode(raw).decode())

    def find(self, raw: bytes) -> int | None:
        """Return the height at which a transaction was executed."""
        with Reader(self.home / "app") as reader, reader.snapshot() as snapshot:
            found = snapshot.transaction(keccak256(raw))
            return None if found is None else found[1]

    def check_core_agrees(self) -> None:
        """Compare every app hash with the one that CometBFT put into the next block."""
        for block in self.blocks()[:-1]:
            header = self.call("header", height=str(block.height + 1))["header"]
            assert header["app_hash"] == block.app_hash.hex().upper(), block.height
