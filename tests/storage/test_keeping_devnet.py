"""On a real chain with real nodes: a dead one is challenged, slashed and replaced, and its blobs move to the new seats.

Minutes, because a challenge runs for 100 blocks: ``pytest -m soak tests/storage/test_keeping_devnet.py``.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from contracts.bindings.client import ChainClient
from contracts.bindings.keys import address_of, create_key, load_key
from contracts.bindings.types import StorageNodeState
from storage import cli, node_cli

pytestmark = [pytest.mark.integration, pytest.mark.soak, pytest.mark.timeout(900)]

UP_SECONDS = 180.0
STEP_SECONDS = 300.0


def call_localnet(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "localnet.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=UP_SECONDS,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def call(app: Any, *arguments: str, code: int = 0) -> Any:
    result = CliRunner().invoke(app, [*arguments, "--json"])
    assert result.exit_code == code, result.output
    return json.loads(result.stdout.splitlines()[-1])


class Stores:
    """Node processes of this test beside the devnet's own one."""

    def __init__(self, root: Path, devnet: dict[str, Any]) -> None:
        self.root = root
        self.rpc: str = devnet["rpc_urls"][0]
        self._home: str = devnet["home"]
        self.processes: dict[str, subprocess.Popen[str]] = {}
        self.urls: dict[str, str] = {}
        self.operators: dict[str, str] = {}

    def start(self, name: str) -> None:
        home = self.root / name
        home.mkdir()
        self.operators[name] = address_of(create_key(home / "operator.key"))
        call_localnet("fund", self.operators[name], "--home", self._home)
        command = [sys.executable, "-m", "storage.node_cli", "start", "--home", str(home), "--chain", self.rpc]
        command += ["--listen", "127.0.0.1:0", "--capacity", "200MB", "--json", "--scrub-rate", "100MB"]
        command += ["--audit-every", "5", "--challenge-after", "2", "--challenge-every", "20"]
        with (self.root / f"{name}.log").open("w") as log:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        self.processes[name] = process
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, (self.root / f"{name}.log").read_text()
        self.urls[name] = json.loads(line)["url"]

    def kill(self, name: str) -> None:
        self.processes[name].send_signal(signal.SIGKILL)
        self.processes[name].wait(10)

    def get_status(self, name: str) -> dict[str, Any]:
        with urllib.request.urlopen(self.urls[name] + "/v1/status", timeout=10) as answer:
            value: dict[str, Any] = json.load(answer)
        return value

    def close(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
            process.wait(10)
            if process.stdout is not None:
                process.stdout.close()


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[Stores]:
    home = tmp_path / "devnet"
    record = json.loads(call_localnet("up", "--storage", "1", "--detach", "--json", "--home", str(home)))
    running = Stores(tmp_path, {**record, "home": str(home)})
    try:
        yield running
    finally:
        running.close()
        call_localnet("down", "--home", str(home))


def wait_for(condition: Callable[[], Any], what: str) -> Any:
    end = time.monotonic() + STEP_SECONDS
    while not (found := condition()):
        assert time.monotonic() < end, f"not within {STEP_SECONDS} s: {what}"
        time.sleep(0.3)
    return found


def test_a_dead_node_is_slashed_and_its_shards_get_a_new_home(stores: Stores, tmp_path: Path) -> None:
    for name in ("b", "c", "d", "e"):
        stores.start(name)
    client = ChainClient([stores.rpc])
    chain = ("--chain", stores.rpc)

    def get_seats() -> list[str]:
        return [seat.operator for seat in client.storage.committee(client.storage.epoch())]

    wait_for(lambda: len(get_seats()) == 5, "five seats")
    owner = tmp_path / "owner.key"
    call_localnet("fund", address_of(create_key(owner)), "--home", str(tmp_path / "devnet"))
    sources = []
    for index in range(2):
        sources.append(tmp_path / f"source{index}")
        sources[-1].write_bytes(os.urandom(900_000 + index))
    paying = ("--key-file", str(owner), *chain)
    blobs = [call(cli.app, "put", str(path), "--blocks", "30000", *paying)["blob"] for path in sources]
    before = call(cli.app, "ls", *paying)["paid_wei"]
    assert call(cli.app, "rehome", *blobs, "--directory", str(tmp_path), *paying) == {
        "moved": [],
        "num_staying": 2,
        "put_anew": [],
        "failed": [],
    }

    # one dies for good: its peers notice, challenge it on the chain, and it is slashed
    dead = stores.operators["e"]
    bond = client.storage.node_account(dead).bond
    stores.kill("e")
    wait_for(lambda: client.storage.node_account(dead).num_challenges, "somebody opens a challenge by itself")
    opened = sum(stores.get_status(name)["audits"]["challenges_opened"] for name in ("b", "c", "d"))
    assert opened >= 1
    stores.start("f")  # its operator's friend puts up another
    wait_for(lambda: client.storage.node_account(dead).num_faults, "silence is slashed")
    assert client.storage.node_account(dead).bond < bond
    assert client.storage.node(dead).state is StorageNodeState.RETIRING
    faults = [client.storage.node_account(stores.operators[name]).num_faults for name in ("b", "c", "d")]
    assert faults == [0, 0, 0], "whoever answers keeps its bond"
    wait_for(lambda: dead not in get_seats() and len(get_seats()) == 5, "a committee without it, with the new one")

    # its shards are homed again: same ids, nothing paid twice, readable from new seats alone
    moved = call(cli.app, "rehome", "--all", "--directory", str(tmp_path), *paying)
    assert {item["blob"] for item in moved["moved"]} == set(blobs)
    assert [item["fee_wei"] for item in moved["moved"]] == [0, 0]
    assert call(cli.app, "ls", *paying)["paid_wei"] == before
    wait_for(lambda: stores.get_status("f")["space"]["num_shards"] == 2, "the new node keeps its shards")
    stores.kill("b")
    for blob, source in zip(blobs, sources, strict=True):
        call(cli.app, "get", blob, "-o", str(tmp_path / "back"), "--force", *chain)
        assert (tmp_path / "back").read_bytes() == source.read_bytes()

    # who leaves is told when the bond comes back
    key = tmp_path / "c" / "operator.key"
    told = call(node_cli.app, "drain", "--key-file", str(key), "--url", stores.urls["c"], *chain)
    assert told["event"] == "draining"
    assert "epoch" in told["bond free"] or "challenge" in told["bond free"]
    wait_for(
        lambda: client.storage.node_account(address_of(load_key(key))).free_height < 2**63, "the bond's height is known"
    )
    told = call(node_cli.app, "drain", "--key-file", str(key), "--url", stores.urls["c"], *chain)
    assert "blocks, about" in told["bond free"]
    refused = call(node_cli.app, "retire", "--take-bond", "--key-file", str(key), *chain, code=1)
    assert "is free: height" in refused["message"]
