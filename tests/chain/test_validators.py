"""Four real validators and what breaks: one cut off, halves cut apart, two down, one paused, an application that is
behind, empty or ahead of its core, a double sign, and a fifth that restores a snapshot.  One devnet for all of it."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from network import MORE_BLOCKS, Network, Sender, check_same_chain, grow, keep_app, keep_core, rewind_app, rewind_core
from real_node import ROOT, Node, wait_until

from chain.cometbft import CometBftMissing, Timing, find_cometbft, load_keys
from chain.core.contracts.staking.bonds import get_bond
from chain.core.contracts.staking.validators import get_validator
from chain.core.light import BlockId, Commit, CommitVote, LightError, encode_vote
from chain.core.types import Address
from chain.home import load_genesis
from chain.light_client import CometBftSource, LightClient, read_moment
from chain.ports import find_free_port
from chain.settings import NodeSettings
from chain.store import Reader
from chain.verified_reads import read_account

pytestmark = pytest.mark.integration

HALT_SECONDS = 2.0
"""For which a halted chain is watched: some ten blocks."""


@pytest.fixture
def network(tmp_path: Path, app_state: dict[str, Any]) -> Iterator[Network]:
    try:
        find_cometbft(os.environ.get("COMETBFT_BIN"), ROOT)
    except CometBftMissing as error:
        pytest.skip(str(error))
    made = Network(
        tmp_path,
        app_state,
        num_validators=4,
        settings=NodeSettings(snapshot_interval_blocks=10),
        timing=Timing(commit_milliseconds=100, propose_milliseconds=500),
    )
    yield made
    made.close()


def test_one_lineage_whatever_breaks(network: Network, alice: Any, tmp_path: Path) -> None:
    nodes, sender = network.nodes, Sender(alice)
    rpc_port = find_free_port()
    network.start(range(4), rpc_port=rpc_port)
    wait_until(lambda: int(nodes[0].call("net_info")["n_peers"]) == 3, "three peers each", 10)
    grow(nodes)
    sender.send_shuffled(nodes, 12)
    sender.send(nodes[0])

    check_verified_reads(nodes[0], alice, f"http://127.0.0.1:{rpc_port}", num_sent=len(sender.raws))
    lost = nodes[3]
    network.isolate({3})
    stuck = lost.height()
    grow(nodes[:3])
    sender.send(nodes[1])
    assert lost.height() <= stuck + 1, "who is cut off makes no blocks"
    network.kill(3)
    keep_app(lost, tmp_path / "older-app")
    keep_core(lost, tmp_path / "older-core")
    network.heal()
    network.start([3])
    grow(nodes)

    network.isolate({2, 3})
    network.check_halted(range(4), HALT_SECONDS)
    network.heal()
    grow(nodes)

    network.kill(2)
    network.kill(3)
    network.check_halted((0, 1), HALT_SECONDS)
    network.start([2])
    grow(nodes[:3])
    sender.send(nodes[2])
    rewind_app(lost, tmp_path / "older-app")
    behind = lost.height()
    network.start([3])
    grow(nodes)
    assert behind < stuck + 3 < lost.height(), "it was behind and has replayed"

    with network.paused([1]):
        grow([nodes[0], *nodes[2:]])
        sender.send(nodes[2])
    grow(nodes)

    network.kill(3)
    rewind_core(lost, tmp_path / "older-core")
    refused = lost.spawn()
    _, errors = refused.communicate(timeout=60)
    lost.process = None
    assert refused.returncode == 1
    assert f"app is at height {lost.height()}, CometBFT only at" in errors, "ahead: refused, with advice"
    assert f"next:  remove {lost.home}/app, and the blocks are replayed from 1" in errors
    rewind_app(lost, tmp_path / "none: an empty application")
    network.start([3])
    grow(nodes)
    sender.send(lost)

    network.kill(3)
    command = [sys.executable, "-m", "chain.cli", "reset", "--state", "--json", "--home", str(lost.home)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, cwd=ROOT)
    assert json.loads(done.stdout)["signed_height"] > behind, "its key signs nothing that it has signed before"
    assert not (lost.home / "app").exists()
    network.start([3])
    grow(nodes)
    sender.send(lost)
    wait_until(lambda: signs(nodes[0], network.keys[3].validator_address), "it signs again")

    accuse(nodes[0], nodes[2])
    address = bytes.fromhex(network.keys[2].validator_address)
    wait_until(lambda: read_validator(nodes[0], address)["jailedUntil"], "the double sign is punished")
    assert read_validator(nodes[0], address)["bond"] == 10 * 10**18 * 95 // 100
    wait_until(lambda: len(nodes[0].call("validators")["validators"]) == 3, "CometBFT goes on with three", 20)
    grow(nodes)

    fifth = _join(nodes[:2], tmp_path / "fifth")
    network.nodes.append(fifth)
    fifth_port = find_free_port()
    fifth.start(rpc_port=fifth_port)
    wait_until(lambda: fifth.height() > 0, "a snapshot is restored")
    with Reader(fifth.home / "app") as reader, reader.snapshot() as snapshot:
        first = snapshot.first_height
        assert first >= 5, "it didn't replay from block 1"
        assert snapshot.block(first - 1) is None
    wait_until(lambda: ask(fifth_port, "eth_blockNumber").get("result"), "its JSON-RPC")
    assert ask(fifth_port, "eth_getBlockByNumber", hex(first), False)["result"]["number"] == hex(first)
    for method, arguments in (
        ("eth_getBlockByNumber", [hex(first - 1), False]),
        ("eth_getBlockByNumber", ["earliest", False]),
        ("eth_getLogs", [{"fromBlock": "0x1", "toBlock": hex(first)}]),
    ):
        message = ask(fifth_port, method, *arguments)["error"]["message"]
        assert f"is not kept here, the oldest is {first}" in message, method
    assert int(ask(fifth_port, "eth_getTransactionCount", "0x" + alice.address.hex(), "latest")["result"], 16) == len(
        sender.raws
    )
    sender.send(fifth)
    grow([*nodes, fifth])
    assert check_same_chain([*nodes, fifth]) > 5 * MORE_BLOCKS
    for node in nodes[:4]:
        for raw in sender.raws:
            assert node.find(raw) is not None
    for node in [*nodes[:4], fifth]:
        assert node.stop() == 0


def signs(node: Node, address: str) -> bool:
    """Say whether a validator's vote is in the newest commit."""
    signatures = node.call("commit")["signed_header"]["commit"]["signatures"]
    return address in {each["validator_address"] for each in signatures if each["block_id_flag"] == 2}


def check_verified_reads(node: Node, alice: Any, rpc_url: str, *, num_sent: int) -> None:
    """Read an account through a light client, over CometBFT's RPC and by the command over JSON-RPC."""
    genesis = load_genesis(node.home)
    client = LightClient(CometBftSource(f"http://{node.addresses.rpc}"), genesis=genesis)
    account = read_account(client, alice.address)
    assert account.nonce == num_sent
    path = node.home / "config" / "genesis.json"
    command = [sys.executable, "-m", "chain.cli", "verify", "--json", "--chain", rpc_url]
    command += ["--genesis", str(path), "--address", "0x" + alice.address.hex()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["balance_wei"], document["nonce"]) == (str(account.balance), num_sent)
    assert document["num_validators"] == 4
    forged = {**genesis, "validators": genesis["validators"][:3]}
    with pytest.raises(LightError, match="validator set of genesis"):
        LightClient(CometBftSource(f"http://{node.addresses.rpc}"), genesis=forged)


def ask(port: int, method: str, *arguments: Any) -> dict[str, Any]:
    """Call JSON-RPC; an empty answer while it doesn't listen."""
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": list(arguments)}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}", body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            document: dict[str, Any] = json.load(answer)
            return document
    except OSError:
        return {}


def accuse(judge: Node, liar: Node) -> None:
    """Sign two precommits for one height with a validator's key, and show them to another node."""
    height = judge.height() - 1
    listed = judge.call("validators", height=str(height))["validators"]
    address = load_keys(liar.home).validator_address
    index = next(place for place, each in enumerate(listed) if each["address"] == address)
    key_file = json.loads((liar.home / "config" / "priv_validator_key.json").read_text())
    key = Ed25519PrivateKey.from_private_bytes(base64.b64decode(key_file["priv_key"]["value"])[:32])
    moment = judge.call("header", height=str(height))["header"]["time"]
    votes = []
    for block_hash in (b"\x01" * 32, b"\x02" * 32):
        block_id = BlockId(hash=block_hash, num_parts=1, parts_hash=block_hash)
        commit = Commit(height=height, round=0, block_id=block_id, votes=())
        vote = CommitVote(flag=2, address=bytes.fromhex(address), time=read_moment(moment), signature=b"")
        votes.append(
            {
                "type": 2,
                "height": str(height),
                "round": 0,
                "block_id": {"hash": block_hash.hex().upper(), "parts": {"total": 1, "hash": block_hash.hex().upper()}},
                "timestamp": moment,
                "validator_address": address,
                "validator_index": index,
                "signature": base64.b64encode(key.sign(encode_vote(commit, vote, "node-test"))).decode(),
            }
        )
    value = {
        "vote_a": votes[0],
        "vote_b": votes[1],
        "TotalVotingPower": str(sum(int(each["voting_power"]) for each in listed)),
        "ValidatorPower": listed[index]["voting_power"],
        "Timestamp": moment,
    }
    judge.call("broadcast_evidence", evidence={"type": "tendermint/DuplicateVoteEvidence", "value": value})


def read_validator(node: Node, operator: bytes) -> dict[str, Any]:
    """Return the staking record of an operator, from a node's durable state."""
    with Reader(node.home / "app") as reader, reader.snapshot() as snapshot:
        validator = get_validator(snapshot.state, Address(operator))
        assert validator is not None
        return {"jailedUntil": validator.jailed_until, "bond": get_bond(snapshot.state, Address(operator))}


def _join(servers: list[Node], home: Path) -> Node:
    wait_until(lambda: list((servers[0].home / "snapshots").glob("[0-9]*")), "a snapshot")
    command = [sys.executable, "-m", "chain.cli", "join", "--json", "--home", str(home)]
    for node in servers:
        command += ["--server", f"http://{node.addresses.rpc}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["chain_id"] == "node-test"
    return Node(home)
