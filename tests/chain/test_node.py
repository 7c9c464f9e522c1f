"""A validator of real processes: CometBFT, the application and the supervisor, killed wherever it hurts."""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import pytest
from real_node import ROOT, CoreRefused, Node, wait_until

from chain.abci import abci_pb2 as pb
from chain.abci.wire import encode_frame
from chain.cometbft import CometBftMissing, Timing, find_cometbft
from chain.core.hashing import keccak256
from chain.home import Addresses, create_network
from chain.ports import find_free_port, find_free_ports

pytestmark = pytest.mark.integration

FAST = Timing(commit_milliseconds=30)


@pytest.fixture
def make_node(tmp_path: Path, app_state: dict[str, Any]) -> Iterator[Callable[..., Node]]:
    """Make nodes that are gone after the test, however it ends."""
    try:
        find_cometbft(os.environ.get("COMETBFT_BIN"), ROOT)
    except CometBftMissing as error:
        pytest.skip(str(error))
    nodes: list[Node] = []

    def make(*, timing: Timing = FAST) -> Node:
        home = tmp_path / f"n{len(nodes)}"
        rpc, p2p = find_free_ports(2)
        create_network(
            [home],
            chain_id="node-test",
            app_state=app_state,
            addresses=[Addresses(rpc=f"127.0.0.1:{rpc}", p2p=f"127.0.0.1:{p2p}")],
            timing=timing,
            time=datetime.now(UTC),
        )
        nodes.append(Node(home))
        return nodes[-1]

    yield make
    for node in nodes:
        process = node.process
        if process is not None and process.poll() is None:
            children = psutil.Process(process.pid).children(recursive=True)
            process.kill()
            psutil.wait_procs(children, timeout=5)
        if process is not None:
            process.communicate()


@pytest.mark.parametrize("point", ["in-finalize", "before-commit", "after-commit"])
def test_crash_in_a_block_loses_nothing(point: str, make_node: Callable[..., Node], alice: Any) -> None:
    node = make_node()
    node.start("--fault", f"{point}:4")
    raws = [alice.raw(nonce) for nonce in range(3)]
    wait_until(lambda: "starting again" in _read_log(node) or node.height() >= 8, "a restart")
    for raw in raws:
        wait_until(lambda raw=raw: _try_send(node, raw), "the transaction is taken")
    wait_until(lambda: all(node.find(raw) for raw in raws), "all three executed")
    node.wait_for_height(8)
    log = (node.home / "logs" / "node.log").read_text()
    assert log.count("ABCI listens") == 2
    node.check_core_agrees()
    assert node.stop() == 0
    executed = [hash_ for block in node.blocks() for hash_ in block.transactions]
    assert executed == [keccak256(raw) for raw in raws]


def _read_log(node: Node) -> str:
    """Return what tells a restart: the application's log has two starts."""
    text = (node.home / "logs" / "node.log").read_text()
    return "starting again" if text.count("ABCI listens") > 1 else ""


def _try_send(node: Node, raw: bytes) -> bool:
    """Send again and again while core or application come back; core answers with an error until both are there.

    A restarted core knows the transactions of the block that it replays, and refuses them by error, not by code.
    """
    try:
        return node.send(raw)["code"] in (0, 16)
    except CoreRefused as refused:
        return "already exists in cache" in str(refused)
    except OSError:
        return False


def test_application_behind_wiped_or_ahead(make_node: Callable[..., Node], alice: Any, tmp_path: Path) -> None:
    node = make_node()
    node.start()
    assert node.send(alice.raw(0))["code"] == 0
    wait_until(lambda: node.find(alice.raw(0)), "executed")
    assert node.stop() == 0
    shutil.copytree(node.home / "app", tmp_path / "older-app")
    shutil.copytree(node.home / "data", tmp_path / "older-data")
    older = node.height()

    node.start()
    assert node.send(alice.raw(1))["code"] == 0
    wait_until(lambda: node.find(alice.raw(1)), "executed")
    node.wait_for_height(older + 4)
    assert node.stop() == 0
    blocks = node.blocks()

    shutil.rmtree(node.home / "app")
    shutil.copytree(tmp_path / "older-app", node.home / "app")
    assert node.height() <= len(blocks) - 1 - 3
    node.start()
    node.wait_for_height(len(blocks))
    assert node.stop() == 0
    assert node.blocks()[: len(blocks)] == blocks, "behind: the missing blocks are replayed"

    shutil.rmtree(node.home / "app")
    node.start()
    node.wait_for_height(len(blocks) + 1)
    node.check_core_agrees()
    assert node.stop() == 0
    assert node.blocks()[: len(blocks)] == blocks, "wiped: all blocks from 1, same hashes"

    newer = node.height()
    shutil.rmtree(node.home / "data")
    shutil.copytree(tmp_path / "older-data", node.home / "data")
    ended = node.spawn()
    _, errors = ended.communicate(timeout=30)
    assert ended.returncode == 1
    assert f"app is at height {newer}, CometBFT only at" in errors, "ahead: refused, with advice"
    assert "replayed from 1" in errors

    shutil.rmtree(node.home / "data")
    ended = node.spawn()
    _, errors = ended.communicate(timeout=30)
    assert ended.returncode == 1
    assert f"app is at height {newer}, but CometBFT's" in errors, "fresh core: refused, with advice"
    assert "chain-node reset" in errors
    assert node.height() == newer, "a refusal changes nothing"

    genesis = node.home / "config" / "genesis.json"
    genesis.write_text(genesis.read_text().replace("node-test", "other-chain"))
    ended = node.spawn()
    _, errors = ended.communicate(timeout=30)
    assert "holds chain node-test, genesis.json says other-chain" in errors


def test_children_are_restarted_and_die_with_the_supervisor(make_node: Callable[..., Node], alice: Any) -> None:
    node = make_node()
    port = find_free_port()
    node.start(rpc_port=port)
    for killed, renewed in (("rpc", {"rpc"}), ("abci", {"abci", "cometbft"}), ("cometbft", {"abci", "cometbft"})):
        before = node.children()
        assert set(before) == {"abci", "cometbft", "rpc"}
        before[killed].kill()
        wait_until(
            lambda before=before, renewed=renewed: _find_renewed(before, node.children()) == renewed,
            f"{renewed} new after {killed} was killed",
        )
        wait_until(lambda: _try_send(node, alice.raw(0)), "the transaction is taken")
    wait_until(lambda: node.find(alice.raw(0)), "executed once")
    wait_until(lambda: _ask_block_number(port), "JSON-RPC answers")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        metrics = answer.read().decode()
    assert "archipelago_abci_height" in metrics, "the application's are beside JSON-RPC's"
    assert "archipelago_rpc_calls_total" in metrics
    lines = (node.home / "logs" / "node.log").read_text().splitlines()
    assert {line.partition("|")[0].strip() for line in lines} == {"node", "cometbft", "abci", "rpc"}, "one log of all"
    second = Node(node.home).spawn()
    _, errors = second.communicate(timeout=60)
    assert (second.returncode, f"runs (process {node.process.pid})" in errors) == (1, True), errors  # type: ignore[union-attr]
    children = list(node.children().values())
    assert node.process is not None
    node.process.kill()
    _, alive = psutil.wait_procs(children, timeout=10)
    assert not alive
    for address in (node.addresses.rpc, node.addresses.p2p, f"127.0.0.1:{port}"):
        host, _, number = address.rpartition(":")
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, int(number)))


def _find_renewed(before: dict[str, psutil.Process], after: dict[str, psutil.Process]) -> set[str]:
    """Return the names whose process is another; all must be there."""
    if set(before) != set(after):
        return set()
    return {name for name in after if after[name].pid != before[name].pid}


def _ask_block_number(port: int) -> int:
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "eth_blockNumber", "params": []}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}", body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return int(json.load(answer)["result"], 16)
    except OSError:
        return 0


def test_500_of_one_key_over_16_connections_all_execute(make_node: Callable[..., Node], alice: Any) -> None:
    node = make_node()
    node.start()
    raws = [alice.raw(nonce) for nonce in range(500)]
    shuffled = raws[:]
    random.Random(11).shuffle(shuffled)
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(node.send, shuffled))
    assert {answer["code"] for answer in answers} == {0}
    wait_until(lambda: node.find(raws[-1]), "the last nonce executed")
    assert node.stop() == 0
    executed = [hash_ for block in node.blocks() for hash_ in block.transactions]
    assert executed == [keccak256(raw) for raw in raws]


def test_idle_chain_without_empty_blocks_rests(make_node: Callable[..., Node], alice: Any) -> None:
    node = make_node(timing=Timing(commit_milliseconds=30, is_creating_empty_blocks=False))
    node.start()
    assert node.send(alice.raw(0))["code"] == 0
    wait_until(lambda: node.find(alice.raw(0)), "executed")
    executed = node.find(alice.raw(0))
    assert executed is not None
    until = time.monotonic() + 3
    while time.monotonic() < until:
        assert node.height() <= executed + 1, "at most the block that proves the app hash"
        time.sleep(0.1)
    assert node.stop() == 0


def test_broken_invariant_ends_the_process_with_a_reason(tmp_path: Path) -> None:
    path = tmp_path / "s"
    command = [sys.executable, "-m", "chain.cli", "abci", "--home", str(tmp_path), "--socket", str(path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            wait_until(path.exists, "the socket")
            with socket.socket(socket.AF_UNIX) as client:
                wait_until(lambda: client.connect_ex(str(path)) == 0, "a connection")
                request = pb.Request(commit=pb.RequestCommit())
                client.sendall(encode_frame(request.SerializeToString()))
                _, errors = process.communicate(timeout=20)
        finally:
            process.kill()
    assert process.returncode == 1
    assert "ABCI commit: OutOfOrder: Commit without FinalizeBlock" in errors
