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

import numpy as np
import pytest
from typer.testing import CliRunner

from contracts.bindings.client import ChainClient
from contracts.bindings.keys import address_of, create_key, load_key
from contracts.bindings.sender import Sender
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
    seen = json.loads(call("sample", stored["blob"], "--samples", "4", "--json", *chain))
    assert (seen["good"], seen["failed"]) == (4, 0)
    shortest = json.loads(call("quote", str(source), "--tier", "cold", "--json", *chain))["blocks"]
    call("quote", str(source), "--tier", "cold", "--blocks", str(shortest - 1), *chain, code=2)
    other = tmp_path / "other.key"
    create_key(other)
    for command in ("rm", "renew"):  # before it would fail for want of money
        refused = json.loads(call(command, stored["blob"], "--key-file", str(other), "--json", *chain, code=4))
        assert refused["error"] == "NotYourLease"
    before = [status["space"]["num_shards"] for status in get_statuses(devnet)]
    (tmp_path / "unpaid").write_bytes(os.urandom(50_000))
    refused = json.loads(call("put", str(tmp_path / "unpaid"), "--key-file", str(other), "--json", *chain, code=6))
    assert f"{address_of(load_key(other))} has 0 tokens on chain id " in refused["message"]
    assert f"at {devnet['rpc_urls'][0]}, a hot lease of 50000 bytes needs" in refused["message"]
    assert [status["space"]["num_shards"] for status in get_statuses(devnet)] == before, "nothing was sent"
    call("get", "00" * 32, "-o", str(tmp_path / "none"), *chain, code=4)
    call("put", str(source), "--tier", "cold", "--blocks", "9", "--key-file", str(key), *chain, code=2)
    assert not (tmp_path / "none").exists()

    statuses = []
    for url in devnet["storage_urls"]:
        with urllib.request.urlopen(url + "/v1/status", timeout=10) as answer:
            statuses.append(json.load(answer))
    assert {status["node"]["registration"] for status in statuses} == {"registered"}
    seats = sorted(seat for status in statuses for seat in max(status["chain"]["seats"].items())[1])
    assert seats == [0, 1, 2, 3]


def test_leases_archives_and_challenges(devnet: dict[str, Any], tmp_path: Path, wait_until: Any) -> None:
    chain = ("--json", "--chain", devnet["rpc_urls"][0])
    key = tmp_path / "payer.key"
    address = address_of(create_key(key))
    paying = ("--key-file", str(key), *chain)
    call_localnet("fund", address, "--home", devnet["home"])

    # two checkpoints a little apart, the second as the difference to the first, cold for a month
    first = np.random.default_rng(1).standard_normal(400_000).astype(np.float32)
    second = first + np.float32(1e-4) * first
    for name, values in (("one", first), ("two", second)):
        (tmp_path / name).write_bytes(values.tobytes())
    one = json.loads(call("archive", str(tmp_path / "one"), *paying))
    two = json.loads(call("archive", str(tmp_path / "two"), "--base", one["blob"], *paying))
    assert (one["depth"], two["depth"], two["base"]) == (0, 1, one["blob"])
    assert two["stored_bytes"] < 0.9 * one["stored_bytes"]
    call("restore", two["blob"], "-o", str(tmp_path / "back"), *chain)
    assert (tmp_path / "back").read_bytes() == second.tobytes()

    # a seat that is accused answers by itself and keeps its bond
    due = json.loads(call("challenge", two["blob"], "1", *paying))["due_height"]
    assert due > 0
    wait_until(lambda: any(s["audits"]["challenges_answered"] for s in get_statuses(devnet)), "an answer", 60.0)
    bonds = [status["income"]["bond_wei"] for status in get_statuses(devnet)]
    assert bonds == [10**18] * 4

    # longer, listed, and given back
    renewed = json.loads(call("renew", one["blob"], "--blocks", "1000", *paying))
    assert renewed["expiry_height"] == one["expiry_height"] + 1_000
    listed = json.loads(call("ls", *paying))
    assert [blob["blob"] for blob in listed["blobs"]] == [one["blob"], two["blob"]]
    refund = json.loads(call("rm", one["blob"], *paying))["refund_wei"]
    assert 0 < refund < one["fee_wei"]
    assert json.loads(call("stat", one["blob"], *chain))["state"] == "RELEASED"
    assert [blob["blob"] for blob in json.loads(call("ls", *paying))["blobs"]] == [two["blob"]]
    wait_until(lambda: sum(s["income"]["earned_wei"] or 0 for s in get_statuses(devnet)) > 0, "seats are paid", 60.0)


def test_a_flood_of_challenges_costs_an_honest_node_nothing(
    devnet: dict[str, Any], tmp_path: Path, wait_until: Any
) -> None:
    """Six in one block against one node: each has a block more than the one before, and all are answered."""
    chain = ("--json", "--chain", devnet["rpc_urls"][0])
    key = tmp_path / "accuser.key"
    private_key = create_key(key)
    call_localnet("fund", address_of(private_key), "--home", devnet["home"])
    blobs = []
    for number in range(6):
        (tmp_path / "file").write_bytes(os.urandom(30_000 + number))
        stored = json.loads(call("put", str(tmp_path / "file"), "--key-file", str(key), "--blocks", "5000", *chain))
        blobs.append(bytes.fromhex(stored["blob"][2:]))
    client = ChainClient(devnet["rpc_urls"])
    infos = [client.storage.blob(blob) for blob in blobs]
    counts = {seat: sum(info.signers >> seat & 1 for info in infos) for seat in range(4)}
    seat = max(counts, key=counts.__getitem__)
    accused = [blob for blob, info in zip(blobs, infos, strict=True) if info.signers >> seat & 1]
    before = sum(status["audits"]["challenges_answered"] for status in get_statuses(devnet))
    sender, bond = Sender(client, private_key), client.storage.node_terms().challenge_bond
    signed = [sender.sign("Storage", "challenge", blob, seat, 7, value=bond, gas=500_000) for blob in accused]
    outcomes = [sender.wait(sender.broadcast(raw), raw=raw) for raw in signed]
    due = [int(outcome.event("ChallengeOpened").fields["due_height"]) - outcome.height for outcome in outcomes]
    assert all(blocks >= 100 for blocks in due)
    wait_until(
        lambda: sum(s["audits"]["challenges_answered"] for s in get_statuses(devnet)) == before + len(accused),
        "all are answered",
        60.0,
    )
    assert not any(client.storage.challenges_of(node.operator) for node in client.storage.committee(infos[0].epoch))
    assert [status["income"]["bond_wei"] for status in get_statuses(devnet)] == [10**18] * 4
    client.close()


def get_statuses(devnet: dict[str, Any]) -> list[dict[str, Any]]:
    statuses = []
    for url in devnet["storage_urls"]:
        with urllib.request.urlopen(url + "/v1/status", timeout=10) as answer:
            statuses.append(json.load(answer))
    return statuses
