"""The commands as people type them, on a real chain with four real nodes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from contracts.bindings.keys import address_of, create_key
from storage import cli

pytestmark = [pytest.mark.integration, pytest.mark.slow]

DEADLINE_SECONDS = 120.0


def call_localnet(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "localnet.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def call(*arguments: str, code: int = 0) -> str:
    """Run a storage command in this process: loading the libraries anew would cost a second each."""
    result = CliRunner().invoke(cli.app, list(arguments))
    assert result.exit_code == code, result.output
    return result.stdout


@pytest.fixture(scope="module")
def devnet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    home = tmp_path_factory.mktemp("store") / "devnet"
    record = json.loads(call_localnet("up", "--detach", "--json", "--home", str(home)))
    try:
        yield {**record, "home": str(home)}
    finally:
        call_localnet("down", "--home", str(home))


def test_put_stat_and_get_a_file(devnet: dict[str, Any], tmp_path: Path) -> None:
    chain = ("--chain", devnet["rpc_urls"][0])
    key = tmp_path / "payer.key"
    address = address_of(create_key(key))
    call_localnet("fund", address, "--home", devnet["home"])
    source, target = tmp_path / "source.bin", tmp_path / "target.bin"
    source.write_bytes(os.urandom(700_001))

    put = ("put", str(source), "--key-file", str(key), "--blocks", "1000", "--json", *chain)
    quoted = json.loads(call("quote", str(source), "--blocks", "1000", "--json", *chain))
    stored = json.loads(call(*put))
    assert stored["num_signatures"] >= 3
    assert quoted["fee_wei"] <= stored["fee_wei"] <= quoted["max_fee_wei"]
    known = json.loads(call("stat", stored["blob"], "--json", *chain))
    assert (known["state"], known["owner"], known["paid_wei"]) == ("LIVE", address, stored["fee_wei"])
    assert known["expiry_height"] == stored["expiry_height"]
    assert json.loads(call(*put))["fee_wei"] == 0, "a second put pays nothing"

    got = json.loads(call("get", stored["blob"], "-o", str(target), "--json", *chain))
    assert target.read_bytes() == source.read_bytes()
    assert (len(got["seats"]), got["faults"]) == (2, [])
    call("get", "00" * 32, "-o", str(tmp_path / "none"), *chain, code=4)
    call("put", str(source), "--tier", "cold", "--key-file", str(key), *chain, code=2)
    assert not (tmp_path / "none").exists()

    statuses = []
    for url in devnet["storage_urls"]:
        with urllib.request.urlopen(url + "/v1/status", timeout=10) as answer:
            statuses.append(json.load(answer))
    assert {status["node"]["registration"] for status in statuses} == {"registered"}
    seats = sorted(seat for status in statuses for seat in max(status["chain"]["seats"].items())[1])
    assert seats == [0, 1, 2, 3]
