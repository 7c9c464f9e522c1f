"""The same on a real validator: cast, concurrent senders, reading at a committed height."""

from __future__ import annotations

import base64
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from eth_account import Account
from web3 import Web3
from web3.middleware import SignAndSendRawMiddlewareBuilder

from chain.core.hashing import keccak256
from contracts.bindings.client import ChainClient
from contracts.bindings.sender import Sender

pytestmark = pytest.mark.integration

FAUCET_KEY = b"\x11" * 32
STAKING = "0x0000000000000000000000000000000000001002"
WEI = 10**18

SEND_MANY = """
import sys
from contracts.bindings.client import ChainClient
from contracts.bindings.sender import Sender
sender = Sender(ChainClient([sys.argv[1]]), bytes.fromhex(sys.argv[2]))
for _ in range(int(sys.argv[3])):
    print(sender.transfer("0x" + "00" * 18 + "beef", 1, deadline_seconds=90).transaction_hash.hex(), flush=True)
"""


@pytest.fixture(scope="module")
def client(devnet: Any) -> Iterator[ChainClient]:
    with ChainClient([devnet.url]) as client:
        yield client


@pytest.fixture(scope="module")
def faucet(client: ChainClient) -> Sender:
    return Sender(client, FAUCET_KEY)


@pytest.fixture
def cast(devnet: Any, npm_package: Callable[[str], tuple[str, Path]]) -> Callable[..., str]:
    node, folder = npm_package("@foundry-rs/cast")

    def run(*arguments: str) -> str:
        command = [node, str(folder / "bin.mjs"), *arguments, "--rpc-url", devnet.url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"{arguments}: {done.stderr}"
        assert "Error" not in done.stderr, f"{arguments}: {done.stderr}"  # the wrapper from npm exits 0 all the same
        return done.stdout.strip()

    return run


def test_cast_call_send_receipt_balance_block_logs(cast: Callable[..., str], faucet: Sender) -> None:
    account = Account.create()
    faucet.transfer(account.address, 10 * WEI)
    assert cast("balance", account.address) == str(10 * WEI)
    key = account.key.hex()
    receipt = json.loads(cast("send", STAKING, "bond()", "--value", "3", "--private-key", key, "--json"))
    assert receipt["status"] == "0x1"
    assert cast("call", STAKING, "bondOf(address)(uint256)", account.address) == "3"
    again = json.loads(cast("receipt", receipt["transactionHash"], "--json"))
    assert again["blockHash"] == receipt["blockHash"]
    block = json.loads(cast("block", receipt["blockNumber"], "--json"))
    assert receipt["transactionHash"] in block["transactions"]
    logs = json.loads(
        cast("logs", "--from-block", receipt["blockNumber"], "--to-block", "latest", "--address", STAKING, "--json")
    )
    assert [log["transactionHash"] for log in logs] == [receipt["transactionHash"]]
    for height in ("0", "1", "2"):
        assert int(json.loads(cast("block", height, "--json"))["number"], 16) == int(height)
    assert int(cast("block-number")) >= int(receipt["blockNumber"], 16)
    assert cast("nonce", account.address) == "1"
    assert cast("code", STAKING) == "0xfe"
    assert json.loads(cast("tx", receipt["transactionHash"], "--json"))["blockHash"] == receipt["blockHash"]
    legacy = json.loads(cast("send", account.address, "--value", "1", "--legacy", "--private-key", key, "--json"))
    assert legacy["type"] == "0x0"


def test_cast_shows_a_custom_error(devnet: Any, npm_package: Callable[[str], tuple[str, Path]]) -> None:
    node, folder = npm_package("@foundry-rs/cast")
    command = [node, str(folder / "bin.mjs"), "call", STAKING, "unbond(uint256)", "5", "--rpc-url", devnet.url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout == ""
    assert Web3.keccak(text="InsufficientBond(uint256,uint256)")[:4].hex() in done.stderr


def test_web3_reads_back_what_it_wrote(devnet: Any, faucet: Sender) -> None:
    w3 = Web3(Web3.HTTPProvider(devnet.url))
    account = Account.create()
    faucet.transfer(account.address, WEI)
    w3.middleware_onion.inject(SignAndSendRawMiddlewareBuilder.build(account), layer=0)
    to = Account.create().address
    sent = w3.eth.send_transaction({"from": account.address, "to": to, "value": 7})
    receipt = w3.eth.wait_for_transaction_receipt(sent, timeout=30)
    assert receipt["status"] == 1
    assert w3.eth.get_balance(to) == 7
    parents = [w3.eth.get_block(height) for height in range(receipt["blockNumber"] + 1)]
    for parent, child in pairwise(parents):
        assert child["parentHash"] == parent["hash"]


def test_fifty_concurrent_transactions_and_a_second_process_on_one_key(
    devnet: Any, client: ChainClient, faucet: Sender
) -> None:
    account = Account.create()
    faucet.transfer(account.address, 10 * WEI)
    sender = Sender(client, bytes(account.key))
    command = [sys.executable, "-c", SEND_MANY, devnet.url, account.key.hex(), "5"]
    other = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    hashes: list[bytes] = []
    failures: list[BaseException] = []

    def send() -> None:
        try:
            hashes.append(sender.transfer(Account.create().address, 1, deadline_seconds=90).transaction_hash)
        except BaseException as e:  # noqa: BLE001 -- shown by the assertion below
            failures.append(e)

    threads = [threading.Thread(target=send) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    output, errors = other.communicate(timeout=120)
    assert failures == []
    assert len(output.split()) == 5, errors
    assert len(set(hashes)) == 50
    assert client.nonce(account.address) == 55


def test_a_commit_that_was_given_up_waiting_for_lands_once(devnet: Any, client: ChainClient, faucet: Sender) -> None:
    """Case 40: broadcast_tx_commit times out, the transaction is in a block; who asks by hash never sends another."""
    before = client.nonce(faucet.address)
    bond = client.staking.bond_of(faucet.address)
    raw = faucet.sign("Staking", "bond", value=7)
    body = json.dumps(
        {"jsonrpc": "2.0", "id": 1, "method": "broadcast_tx_commit", "params": {"tx": base64.b64encode(raw).decode()}}
    ).encode()
    host, port = devnet.core_url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as impatient:
        impatient.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    outcome = faucet.wait(keccak256(raw), raw=raw, deadline_seconds=30)
    for _ in range(3):
        assert faucet.broadcast(raw) == outcome.transaction_hash, "the same bytes are the same transaction"
    assert faucet.wait(keccak256(raw), raw=raw, deadline_seconds=30).height == outcome.height
    assert client.staking.bond_of(faucet.address) == bond + 7
    assert client.nonce(faucet.address) == before + 1


def test_what_block_number_says_is_there_whole(devnet: Any, client: ChainClient, faucet: Sender) -> None:
    """Read while transactions land: of every announced height all blocks, receipts and states agree."""
    stop = threading.Event()
    problems: list[str] = []
    num_checked = 0

    def watch() -> None:
        nonlocal num_checked
        seen = client.height()
        while not stop.is_set():
            newest = client.height()
            for height in range(seen + 1, newest + 1):
                block = client.request("eth_getBlockByNumber", hex(height), False)
                if block is None:
                    problems.append(f"block {height} of {newest} is missing")
                    continue
                for sent in block["transactions"]:
                    receipt = client.request("eth_getTransactionReceipt", sent)
                    if receipt is None or receipt["blockHash"] != block["hash"]:
                        problems.append(f"receipt of {sent} in {height} is {receipt}")
                    num_checked += 1
            seen = newest

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        for _ in range(3):
            threads = [threading.Thread(target=faucet.transfer, args=(Account.create().address, 1)) for _ in range(10)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
    finally:
        stop.set()
        watcher.join(30)
    assert problems == []
    assert num_checked >= 20


def test_a_home_of_another_chain_is_named_before_anything_is_signed(devnet: Any, tmp_path: Path) -> None:
    """It ended in the contract's BadKeyProof with the key's bytes."""
    home, key = tmp_path / "other", tmp_path / "operator.key"

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)

    assert run("training.cli", "keys", "new", str(key)).returncode == 0
    assert run("chain.cli", "init", "--home", str(home), "--chain-id", "other-1").returncode == 0
    done = run("chain.cli", "register-validator", "--home", str(home), "--key-file", str(key), "--chain", devnet.url)
    assert done.returncode == 1
    said = done.stderr
    assert f"error: {home} is of chain other-1 (EVM chain id" in said
    assert "and --chain is chain rpc-test-1 (EVM chain id" in said
    assert "next:  give the URL of a node of other-1 with --chain" in said
    assert "BadKeyProof" not in said
    own = run(
        "chain.cli", "register-validator", "--home", str(devnet.home), "--key-file", str(key), "--chain", devnet.url
    )
    assert "insufficient" in own.stderr, "its own home's proof is taken; only the money is missing"
