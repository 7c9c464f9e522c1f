"""A devnet on the real CometBFT and real storage nodes: up, status, fund, down; nothing is left."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from contracts.bindings.client import ChainClient

pytestmark = pytest.mark.integration

DEADLINE_SECONDS = 120.0
STOP_SECONDS = 15.0
NAMES = ["validator-0", *(f"storage-{i}" for i in range(4))]
BENEFICIARY = "0x" + "ab" * 20


def run_localnet(*arguments: str, code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "localnet.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def list_processes(home: Path) -> list[psutil.Process]:
    """Every process whose command line names the home: all of a devnet's do."""
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if any(str(home) in part for part in process.info["cmdline"] or ())
    ]


def wait_for_none(home: Path) -> list[str]:
    end = time.monotonic() + STOP_SECONDS
    while (left := list_processes(home)) and time.monotonic() < end:
        time.sleep(0.05)
    return [" ".join(process.info["cmdline"] or ()) for process in left]


def end_all(home: Path) -> None:
    for process in list_processes(home):
        process.kill()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    home = tmp_path_factory.mktemp("devnet") / "home"
    yield home
    end_all(home)


@pytest.fixture(scope="module")
def devnet(home: Path) -> dict[str, Any]:
    """A detached devnet with four storage nodes whose wish for a port cannot be granted."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        busy = holder.getsockname()[1]
        record = json.loads(run_localnet("up", "--detach", "--json", "--home", str(home), "--rpc-port", str(busy)))
    assert record["rpc_urls"][0] != f"http://127.0.0.1:{busy}"
    return record


def test_devnet_makes_blocks_and_has_four_seats(devnet: dict[str, Any]) -> None:
    client = ChainClient([devnet["rpc_urls"][0]])
    assert client.height() >= 1
    seats = client.storage.committee(client.storage.epoch())
    assert {seat.url for seat in seats} == set(devnet["storage_urls"])
    assert len(seats) == 4
    client.close()


def test_busy_port_was_named(devnet: dict[str, Any], home: Path) -> None:
    assert re.search(r"port \d+ is busy, taking \d+", (home / "localnet.log").read_text())


def test_status_shows_every_process(devnet: dict[str, Any], home: Path) -> None:
    facts = json.loads(run_localnet("status", "--json", "--home", str(home)))
    assert facts["phase"] == "ready"
    assert facts["height"] >= 1
    assert [one["name"] for one in facts["processes"]] == NAMES
    assert all(one["is_alive"] for one in facts["processes"])


def test_fund_sends_from_the_faucet(devnet: dict[str, Any], home: Path) -> None:
    run_localnet("fund", BENEFICIARY, "--tokens", "1.5", "--home", str(home))
    client = ChainClient([devnet["rpc_urls"][0]])
    assert client.balance(BENEFICIARY) == 15 * 10**17
    client.close()


def test_invalid_second_up_in_the_same_home_names_the_first(devnet: dict[str, Any], home: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "localnet.cli", "up", "--home", str(home)],
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    assert done.returncode == 1
    assert f"process {devnet['supervisor']['pid']}" in done.stderr


def test_a_store_that_died_is_announced_and_started_again(devnet: dict[str, Any], home: Path) -> None:
    def get_store() -> dict[str, Any]:
        facts = json.loads(run_localnet("status", "--json", "--home", str(home)))
        assert [one["name"] for one in facts["processes"]] == NAMES, "in order, whoever was started last"
        return next(one for one in facts["processes"] if one["name"] == "storage-1")

    before = get_store()["pid"]
    os.kill(before, signal.SIGKILL)
    end = time.monotonic() + DEADLINE_SECONDS
    while (store := get_store())["pid"] == before or not store["is_alive"]:
        assert time.monotonic() < end, store
    said = (home / "localnet.log").read_text()
    assert re.search(r"storage-1 was ended by signal 9; it is started again in \d s; its log is ", said)
    url = devnet["storage_urls"][1]
    while True:
        assert time.monotonic() < end, "it does not serve"
        try:
            with urllib.request.urlopen(url + "/v1/status", timeout=2) as answer:
                assert answer.status == 200
                break
        except OSError:
            time.sleep(0.1)


def test_down_leaves_no_process_and_the_chain_goes_on_next_time(devnet: dict[str, Any], home: Path) -> None:
    client = ChainClient([devnet["rpc_urls"][0]])
    height = client.height()
    client.close()
    began = time.monotonic()
    assert json.loads(run_localnet("down", "--json", "--home", str(home)))["was_up"]
    assert time.monotonic() - began < STOP_SECONDS
    assert wait_for_none(home) == []
    assert json.loads(run_localnet("status", "--json", "--home", str(home), code=1))["phase"] == "stopped"
    assert run_localnet("down", "--home", str(home)).startswith("nothing was up")
    again = json.loads(run_localnet("up", "--detach", "--json", "--home", str(home)))
    assert again["chain_id"] == devnet["chain_id"]
    client = ChainClient([again["rpc_urls"][0]])
    assert client.height() >= height
    client.close()
    run_localnet("down", "--home", str(home))
    assert wait_for_none(home) == []


def start_foreground(home: Path) -> subprocess.Popen[str]:
    command: Sequence[str] = [
        sys.executable,
        "-m",
        "localnet.cli",
        "up",
        "--home",
        str(home),
        "--storage",
        "1",
        "--json",
    ]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("moment", ["validator-0", "storage-0", "ready"])
def test_ctrl_c_at_any_moment_leaves_no_process(tmp_path: Path, moment: str) -> None:
    home = tmp_path / "home"
    process = start_foreground(home)
    try:
        _wait_for_moment(home, process, moment)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=STOP_SECONDS)
        assert process.returncode == (0 if moment == "ready" else 130), output + errors
        assert wait_for_none(home) == []
        assert not list(home.glob("*.part"))
    finally:
        process.kill()
        end_all(home)


def test_sigkill_of_the_supervisor_leaves_no_process(tmp_path: Path) -> None:
    home = tmp_path / "home"
    process = start_foreground(home)
    try:
        _wait_for_moment(home, process, "ready")
        os.kill(process.pid, signal.SIGKILL)
        process.communicate(timeout=STOP_SECONDS)
        assert wait_for_none(home) == []
        assert json.loads(run_localnet("status", "--json", "--home", str(home), code=1))["phase"] == "dead"
    finally:
        process.kill()
        end_all(home)


def test_validator_that_dies_takes_the_devnet_down_with_a_reason(tmp_path: Path) -> None:
    home = tmp_path / "home"
    process = start_foreground(home)
    try:
        _wait_for_moment(home, process, "ready")
        record = json.loads((home / "devnet.json").read_text())
        validator = next(one for one in record["processes"] if one["name"] == "validator-0")
        os.kill(validator["id"]["pid"], signal.SIGKILL)
        _, errors = process.communicate(timeout=STOP_SECONDS)
        assert process.returncode == 1
        assert "validator-0 was ended by signal 9" in errors
        assert wait_for_none(home) == []
    finally:
        process.kill()
        end_all(home)


def _wait_for_moment(home: Path, process: subprocess.Popen[str], moment: str) -> None:
    end = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < end and process.poll() is None:
        path = home / "devnet.json"
        if path.exists():
            record = json.loads(path.read_text())
            names = {one["name"] for one in record["processes"]}
            if record["phase"] == "ready" or (moment != "ready" and moment in names):
                return
        time.sleep(0.02)
    process.kill()
    raise AssertionError(f"never came to {moment}: {process.communicate()}")


@pytest.mark.parametrize(
    ("address", "words"), [("0x12", "40 hex digits"), ("0x" + "Ab" * 20, "checksum of"), ("bob", "40 hex digits")]
)
def test_invalid_address_is_refused_with_the_next_step(address: str, words: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "localnet.cli", "fund", address, "--home", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    assert done.returncode == 2
    assert words in done.stderr
