"""Signed transfers and Solidity storage writes on one validator, beside CometBFT's built-in kvstore in one invocation.

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
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

from coincurve import PrivateKey

from benchmarks.report import Row, write_report
from chain.cometbft import Timing, find_cometbft
from chain.core import rlp
from chain.core.evm.addresses import compute_create_address
from chain.core.hashing import keccak256
from chain.home import Addresses, compute_evm_chain_id, create_home
from chain.ports import find_free_port
from chain.supervisor import fetch_status

NUM_TRANSACTIONS = 20_000
NUM_SENDERS = 200
NUM_CONNECTIONS = 16
BATCH = 100
CHAIN_ID = "benchmark"
GAS_LIMIT = 700_000_000
"""Of a block: 33,000 transfers, as many as kvstore gets into block.max_bytes."""
NUM_WRITES = 6_000
"""Storage writes through a user's contract, a new slot each."""
WRITE_GAS = 44_000
"""Limit of one: 43,700 are used."""
EVM_GAS_LIMIT = 100_000_000
"""Of a block in ``solidity_1v``; ``solidity_1v_default`` keeps genesis' default, which bounds hostile blocks."""
TABLE = bytes.fromhex(
    "6080604052348015600e575f5ffd5b5060b580601a5f395ff3fe6080604052348015600e575f5ffd5b50600436106030"
    "575f3560e01c80631ab06ee5146034578063bafff8c0146052575b5f5ffd5b6050603f3660046080565b5f9182526020"
    "829052604090912055565b005b606e605d366004609f565b5f6020819052908152604090205481565b60405190815260"
    "200160405180910390f35b5f5f604083850312156090575f5ffd5b50508035926020909101359150565b5f6020828403"
    "121560ae575f5ffd5b503591905056"
)
"""solc 0.8.30 of ``mapping(uint256 => uint256) public table; function set(uint256 key, uint256 value)``."""
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
        creation, writes, alloc = make_writes()
        solidity, default = (
            measure(Path(directory) / name, writes, alloc, is_kvstore=False, before=[creation], options=options)
            for name, options in (("solidity", {"evmGasLimit": EVM_GAS_LIMIT}), ("default", {}))
        )
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
            Row(
                name="solidity_1v",
                value=solidity,
                unit="tx/s",
                peer=peer,
                peer_value=kvstore,
                conditions=f"{NUM_WRITES} storage writes, {EVM_GAS_LIMIT:,} EVM gas a block, otherwise the same",
            ),
            Row(
                name="solidity_1v_default",
                value=default,
                unit="tx/s",
                peer=peer,
                peer_value=kvstore,
                conditions=f"{NUM_WRITES} storage writes, the default EVM gas a block, otherwise the same",
            ),
        ],
    )


def make_transfers() -> tuple[list[bytes], dict[str, str]]:
    """Sign the transfers: nonce by nonce over all senders, each to an address of its own."""
    keys, alloc = _make_keys()
    raws = []
    for number in range(NUM_TRANSACTIONS):
        nonce, sender = divmod(number, NUM_SENDERS)
        raws.append(_sign(keys[sender], nonce, 21_000, keccak256(b"%d" % number)[12:], 1, b""))
    return raws, alloc


def make_writes() -> tuple[bytes, list[bytes], dict[str, str]]:
    """Sign the creation of a table, and writes to it over all senders."""
    keys, alloc = _make_keys()
    maker = bytes.fromhex(next(iter(alloc))[2:])
    table = compute_create_address(maker, 0)
    selector = keccak256(b"set(uint256,uint256)")[:4]
    raws = []
    for number in range(NUM_WRITES):
        nonce, sender = divmod(number, NUM_SENDERS)
        data = selector + number.to_bytes(32, "big") + (1).to_bytes(32, "big")
        raws.append(_sign(keys[sender], nonce + (sender == 0), WRITE_GAS, table, 0, data))
    return _sign(keys[0], 0, 1_000_000, b"", 0, TABLE), raws, alloc


def _make_keys() -> tuple[list[PrivateKey], dict[str, str]]:
    keys = [PrivateKey((1000 + index).to_bytes(32, "big")) for index in range(NUM_SENDERS)]
    addresses = [keccak256(key.public_key.format(compressed=False)[1:])[12:] for key in keys]
    return keys, {f"0x{address.hex()}": str(10**21) for address in addresses}


def _sign(key: PrivateKey, nonce: int, gas: int, to: bytes, value: int, data: bytes) -> bytes:
    chain_id = compute_evm_chain_id(CHAIN_ID)
    fields: list[object] = [rlp.encode_integer(number) for number in (chain_id, nonce, GWEI, 2 * GWEI, gas)]
    fields += [to, rlp.encode_integer(value), data, []]
    signature = key.sign_recoverable(keccak256(b"\x02" + rlp.encode(fields)), hasher=None)
    parts = (signature[64], int.from_bytes(signature[:32], "big"), int.from_bytes(signature[32:64], "big"))
    return b"\x02" + rlp.encode([*fields, *(rlp.encode_integer(part) for part in parts)])


def measure(
    home: Path,
    transactions: Sequence[bytes],
    alloc: dict[str, str],
    *,
    is_kvstore: bool,
    before: Sequence[bytes] = (),
    options: Mapping[str, int] = MappingProxyType({}),
) -> float:
    """Return transactions per second; those ``before`` are in a block when the clock starts."""
    addresses = Addresses(rpc=f"127.0.0.1:{find_free_port()}", p2p=f"127.0.0.1:{find_free_port()}")
    app_state = {"evmChainId": compute_evm_chain_id(CHAIN_ID), "alloc": alloc, "gasLimit": GAS_LIMIT, **options}
    create_home(
        home, chain_id=CHAIN_ID, app_state=app_state, addresses=addresses, timing=Timing(), time=datetime.now(UTC)
    )
    with _run(home, is_kvstore=is_kvstore):
        _wait_for_blocks(addresses.rpc)
        lanes = [_make_lane(transactions, lane) for lane in range(NUM_CONNECTIONS)]
        counter = _Counter(addresses.rpc)
        if before:
            _send(addresses.rpc, [_make_batch(before)])
            _wait_for_count(counter, len(before))
        wanted = len(before) + len(transactions)
        start_time = time.perf_counter()
        with ThreadPoolExecutor(NUM_CONNECTIONS) as pool:
            sending = [pool.submit(_send, addresses.rpc, lane) for lane in lanes]
            deadline = start_time + DEADLINE_SECONDS
            while counter.count() < wanted:
                if time.perf_counter() > deadline:
                    raise TimeoutError(f"{counter.total} of {wanted} transactions after {DEADLINE_SECONDS} s")
                for future in sending:
                    if future.done():
                        future.result()
                time.sleep(POLL_SECONDS)
            seconds = time.perf_counter() - start_time
    return len(transactions) / seconds


def _wait_for_count(counter: _Counter, wanted: int) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while counter.count() < wanted:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{counter.total} of {wanted} transactions after {DEADLINE_SECONDS} s")
        time.sleep(POLL_SECONDS)


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


def _make_lane(transactions: Sequence[bytes], lane: int) -> list[bytes]:
    """Return one connection's batches: all of its senders' transactions, in the order of their nonces.

    A sender stays on one connection, as a client's wallet does, so few transactions wait for an earlier nonce; the
    chain bounds how many may.
    """
    own = [raw for number, raw in enumerate(transactions) if number % NUM_SENDERS % NUM_CONNECTIONS == lane]
    return [_make_batch(own[start : start + BATCH]) for start in range(0, len(own), BATCH)]


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
