"""Signed transfers on one validator, beside CometBFT's built-in kvstore in the same invocation.

Both run the same binary, configuration and load: JSON-RPC batches of ``broadcast_tx_async`` over 16 connections,
transactions of the same size.  The rate is the number of transactions over the time from the first request until
the last is in a committed block.  kvstore is the ceiling of this machine: it checks no signature and keeps no state
on disk.  Run it from the repository's root: ``python -m benchmarks.chain``; it takes about a minute.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from coincurve import PrivateKey

from benchmarks.report import Row, write_report
from chain.cometbft import Timing, find_cometbft
from chain.core import rlp
from chain.core.hashing import keccak256
from chain.home import Addresses, compute_evm_chain_id, create_home
from chain.supervisor import fetch_status, find_free_port

NUM_TRANSACTIONS = 20_000
NUM_SENDERS = 200
NUM_CONNECTIONS = 16
BATCH = 100
CHAIN_ID = "benchmark"
GAS_LIMIT = 700_000_000
"""Of a block: 33,000 transfers, as many as kvstore gets into block.max_bytes."""
DEADLINE_SECONDS = 120.0
GWEI = 10**9
ROOT = Path(__file__).resolve().parent.parent
POLL_SECONDS = 0.02


def main() -> None:
    """Measure both and write the report."""
    transfers, alloc = make_transfers()
    size = sum(len(raw) for raw in transfers) // len(transfers)
    pairs = [(b"k%07d=" % number).ljust(size, b"v") for number in range(NUM_TRANSACTIONS)]
    with tempfile.TemporaryDirectory(prefix="benchmark-chain-") as directory:
        kvstore = measure(Path(directory) / "kvstore", pairs, {}, is_kvstore=True)
        transfer = measure(Path(directory) / "transfer", transfers, alloc, is_kvstore=False)
    conditions = (
        f"{NUM_TRANSACTIONS} transactions of {size} bytes, {NUM_CONNECTIONS} connections, 1 validator,"
        f" timeout_commit {Timing().commit_milliseconds} ms, {os.cpu_count()} cores shared with the load"
    )
    peer = "CometBFT's built-in kvstore"
    write_report(
        "chain",
        [
            Row(name="kvstore_1v", value=kvstore, unit="tx/s", peer=peer, peer_value=kvstore, conditions=conditions),
            Row(name="transfer_1v", value=transfer, unit="tx/s", peer=peer, peer_value=kvstore, conditions=conditions),
        ],
    )


def make_transfers() -> tuple[list[bytes], dict[str, str]]:
    """Sign the transfers: nonce by nonce over all senders, each to an address of its own."""
    chain_id = compute_evm_chain_id(CHAIN_ID)
    keys = [PrivateKey((1000 + index).to_bytes(32, "big")) for index in range(NUM_SENDERS)]
    addresses = [keccak256(key.public_key.format(compressed=False)[1:])[12:] for key in keys]
    raws = []
    for number in range(NUM_TRANSACTIONS):
        nonce, sender = divmod(number, NUM_SENDERS)
        fields: list[object] = [rlp.encode_integer(value) for value in (chain_id, nonce, GWEI, 2 * GWEI, 21_000)]
        fields += [keccak256(b"%d" % number)[12:], rlp.encode_integer(1), b"", []]
        signature = keys[sender].sign_recoverable(keccak256(b"\x02" + rlp.encode(fields)), hasher=None)
        parts = (signature[64], int.from_bytes(signature[:32], "big"), int.from_bytes(signature[32:64], "big"))
        raws.append(b"\x02" + rlp.encode([*fields, *(rlp.encode_integer(part) for part in parts)]))
    return raws, {f"0x{address.hex()}": str(10**21) for address in addresses}


def measure(home: Path, transactions: Sequence[bytes], alloc: dict[str, str], *, is_kvstore: bool) -> float:
    """Return transactions per second."""
    addresses = Addresses(rpc=f"127.0.0.1:{find_free_port()}", p2p=f"127.0.0.1:{find_free_port()}")
    app_state = {"evmChainId": compute_evm_chain_id(CHAIN_ID), "alloc": alloc, "gasLimit": GAS_LIMIT}
    create_home(
        home, chain_id=CHAIN_ID, app_state=app_state, addresses=addresses, timing=Timing(), time=datetime.now(UTC)
    )
    with _run(home, is_kvstore=is_kvstore):
        _wait_for_blocks(addresses.rpc)
        bodies = [_make_batch(transactions[start : start + BATCH]) for start in range(0, len(transactions), BATCH)]
        counter = _Counter(addresses.rpc)
        start_time = time.perf_counter()
        with ThreadPoolExecutor(NUM_CONNECTIONS) as pool:
            lanes = [bodies[lane::NUM_CONNECTIONS] for lane in range(NUM_CONNECTIONS)]
            sending = [pool.submit(_send, addresses.rpc, lane) for lane in lanes]
            deadline = start_time + DEADLINE_SECONDS
            while counter.count() < len(transactions):
                if time.perf_counter() > deadline:
                    raise TimeoutError(
                        f"{counter.total} of {len(transactions)} transactions after {DEADLINE_SECONDS} s"
                    )
                for future in sending:
                    if future.done():
                        future.result()
                time.sleep(POLL_SECONDS)
            seconds = time.perf_counter() - start_time
    return len(transactions) / seconds


class _Counter:
    """Counts the transactions in blocks, each block once."""

    def __init__(self, address: str) -> None:
        self._connection = http.client.HTTPConnection(address, timeout=10)
        self._height = 0
        self.total = 0

    def count(self) -> int:
        """Return the transactions in all blocks so far."""
        newest = int(_get(self._connection, "/status")["sync_info"]["latest_block_height"])
        while self._height < newest:
            last = min(newest, self._height + 20)
            chain = _get(self._connection, f"/blockchain?minHeight={self._height + 1}&maxHeight={last}")
            self.total += sum(int(meta["num_txs"]) for meta in chain["block_metas"])
            self._height = last
        return self.total


def _get(connection: http.client.HTTPConnection, path: str) -> dict[str, Any]:
    connection.request("GET", path)
    result: dict[str, Any] = json.loads(connection.getresponse().read())["result"]
    return result


def _make_batch(transactions: Sequence[bytes]) -> bytes:
    calls = [
        {
            "jsonrpc": "2.0",
            "id": index,
            "method": "broadcast_tx_async",
            "params": {"tx": base64.b64encode(raw).decode()},
        }
        for index, raw in enumerate(transactions)
    ]
    return json.dumps(calls).encode()


def _send(address: str, bodies: Sequence[bytes]) -> None:
    connection = http.client.HTTPConnection(address, timeout=60)
    for body in bodies:
        connection.request("POST", "/", body, {"Content-Type": "application/json"})
        answers = json.loads(connection.getresponse().read())
        errors = [answer["error"] for answer in answers if "error" in answer]
        if errors:
            raise RuntimeError(f"refused: {errors[0]}")
    connection.close()


def _wait_for_blocks(address: str) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while True:
        status = fetch_status(f"http://{address}")
        if status is not None and int(status["sync_info"]["latest_block_height"]) >= 2:  # type: ignore[index]
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"no blocks at {address} after {DEADLINE_SECONDS} s")
        time.sleep(POLL_SECONDS)


@contextmanager
def _run(home: Path, *, is_kvstore: bool) -> Iterator[None]:
    binary = find_cometbft(os.environ.get("COMETBFT_BIN"), ROOT)
    if is_kvstore:
        command = [str(binary), "start", "--home", str(home), "--proxy_app", "kvstore"]
    else:
        command = [sys.executable, "-m", "chain.cli", "start", "--home", str(home), "--rpc-listen", "127.0.0.1:0"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=ROOT)
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


if __name__ == "__main__":
    main()
