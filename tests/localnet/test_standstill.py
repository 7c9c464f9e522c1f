"""A chain that needs a validator which doesn't vote: no command calls it up, each says what stands still and why."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from contracts.bindings.client import ChainClient

pytestmark = [pytest.mark.integration, pytest.mark.soak, pytest.mark.timeout(600)]

DEADLINE_SECONDS = 150.0
BENEFICIARY = "0x" + "ab" * 20


def run(module: str, *arguments: str, code: int = 0) -> tuple[str, str]:
    """Run a command; return what it wrote on its two outputs."""
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout, done.stderr


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    home = tmp_path / "devnet"
    yield home
    run("localnet.cli", "down", "--quiet", "--home", str(home))
    for process in psutil.process_iter(["cmdline"]):
        if any(str(home) in part for part in process.info["cmdline"] or ()):
            process.kill()


def test_a_second_validator_that_does_not_vote(home: Path, tmp_path: Path) -> None:
    started, _ = run("localnet.cli", "up", "--detach", "--json", "--storage", "1", "--home", str(home))
    url = json.loads(started)["rpc_urls"][0]
    key, node = tmp_path / "operator.key", tmp_path / "second"
    address = run("training.cli", "keys", "new", str(key))[0].split()[0]
    run("localnet.cli", "fund", address, "--home", str(home))
    core = json.loads(run("chain.cli", "status", "--json", "--home", str(home / "validator-0"))[0])["cometbft_url"]
    run("chain.cli", "join", "--server", core, "--no-state-sync", "--home", str(node))
    register = ["register-validator", "--home", str(node), "--key-file", str(key), "--chain", url]

    said, warned = run("chain.cli", *register, "--bond", "4")
    assert "power 4 of 14 for a bond of 4 tokens: the others have 10, more than two thirds" in warned
    assert "power 4 of 14" in said
    with ChainClient([url]) as client:
        assert client.staking.validator(address).power == 4
        left = run("chain.cli", "leave-validator", "--key-file", str(key), "--chain", url)[0]
        assert "4 tokens unlock at block" in left
        assert client.staking.validator(address).power == 0

    second = tmp_path / "second.key"
    address = run("training.cli", "keys", "new", str(second))[0].split()[0]
    run("localnet.cli", "fund", address, "--home", str(home))
    other = tmp_path / "third"
    run("chain.cli", "join", "--server", core, "--no-state-sync", "--home", str(other))
    register = ["register-validator", "--home", str(other), "--key-file", str(second), "--chain", url, "--bond", "5"]
    _, refused = run("chain.cli", *register, code=1)
    assert "warning: power 5 of 15" in refused
    assert "the chain would need this node's vote, and it doesn't run" in refused
    said, _ = run("chain.cli", *register, "--force")
    assert "power 5 of 15" in said

    since = time.monotonic()
    out, _ = run("localnet.cli", "status", "--home", str(home), code=1)
    assert "ready, BUT ITS CHAIN STANDS STILL" in out
    assert "more than two thirds of the power 15; this node's validator has 10, silent: " in out
    _, warned = run("localnet.cli", "fund", BENEFICIARY, "--home", str(home), code=1)
    assert "warning: no block after" in warned
    assert "is in no block after 30 s: no block after" in warned
    examined, _ = run("chain.cli", "doctor", "--home", str(home / "validator-0"), code=1)
    assert "the chain stands still, or this clock is ahead; the next needs votes of more than two thirds" in examined
    assert "this node's validator has 10, silent: " in examined
    with ChainClient([url], timeout_seconds=10) as client:
        stood = client.height()
    run("localnet.cli", "down", "--home", str(home))

    _, failed = run("localnet.cli", "up", "--detach", "--storage", "1", "--home", str(home), code=1)
    assert "warning: no block after" in failed
    assert "runs, but isn't ready: no block after" in failed
    facts = json.loads(run("localnet.cli", "status", "--json", "--home", str(home), code=1)[0])
    assert (facts["is_up"], facts["phase"], facts["stands_still"]) == (True, "starting", True)
    assert facts["height"] <= stood + 1
    assert time.monotonic() - since < DEADLINE_SECONDS

    with (tmp_path / "node.log").open("wb") as log:
        node_process = subprocess.Popen(
            [sys.executable, "-m", "chain.cli", "start", "--home", str(other), "--rpc-listen", "127.0.0.1:0"],
            stdout=log,
            stderr=log,
        )
    try:
        end = time.monotonic() + DEADLINE_SECONDS
        while json.loads((home / "devnet.json").read_text())["phase"] != "ready":
            assert time.monotonic() < end, (tmp_path / "node.log").read_text()[-2000:]
            time.sleep(0.2)
        run("localnet.cli", "status", "--home", str(home))
    finally:
        node_process.terminate()
        node_process.wait(30)
