"""Transactions a second, from the first request until the last one is in a committed block.

The load is JSON-RPC batches of ``broadcast_tx_async`` over many connections, encoded before the clock starts; a
sender stays on one connection, as a wallet does.  The load is the same for kvstore and for our application.
"""

from __future__ import annotations

import base64
import http.client
import json
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from benchmarks.chain_nodes import DEADLINE_SECONDS, POLL_SECONDS, BlockCounter, Network, run_network
from benchmarks.chain_signing import Load, make_pairs

NUM_CONNECTIONS = 64
BATCH = 50
"""Transactions in one request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """One measurement."""

    per_second: float
    """Transactions."""
    cpu_microseconds: dict[str, float]
    """Processor time a transaction, by kind of process, of all validators together."""

    def describe_cpu(self) -> str:
        """Say where the processor's time went."""
        parts = (f"{name} {value:.0f}" for name, value in sorted(self.cpu_microseconds.items()) if value >= 1)
        return f"µs of processor a transaction: {', '.join(parts)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Our application beside kvstore, one right after the other."""

    kvstore: Throughput
    chain: Throughput

    @property
    def ratio(self) -> float:
        """Ours over kvstore's."""
        return self.chain.per_second / self.kvstore.per_second


def measure_pair(load: Load, *, num_validators: int = 1, num_pairs_sent: int = 0) -> Pair:
    """Measure kvstore, then our application, with transactions of the same size; kvstore may get more of them."""
    pairs = make_pairs(num_pairs_sent or len(load.transactions), load.mean_bytes)
    with tempfile.TemporaryDirectory(prefix="benchmark-chain-") as directory:
        with run_network(Path(directory) / "k", {}, num_validators=num_validators, is_kvstore=True) as network:
            kvstore = measure(network, pairs)
        with run_network(Path(directory) / "c", load.app_state, num_validators=num_validators) as network:
            chain = measure(network, load)
            check_all_succeeded(network, load)
    return Pair(kvstore=kvstore, chain=chain)


def measure(network: Network, load: Load) -> Throughput:
    """Send a load and wait until all of it is in blocks."""
    counter = BlockCounter(network.validators[0].cometbft)
    send_phases(network, load, counter)
    addresses = [validator.cometbft for validator in network.validators]
    lanes = [_make_lane(load, lane) for lane in range(NUM_CONNECTIONS)]
    wanted = counter.count() + len(load.transactions)
    cpu_before = network.read_cpu_seconds()
    start = time.perf_counter()
    with ThreadPoolExecutor(NUM_CONNECTIONS) as pool:
        sending = [pool.submit(send, addresses[lane % len(addresses)], bodies) for lane, bodies in enumerate(lanes)]
        while counter.count() < wanted:
            if time.perf_counter() > start + DEADLINE_SECONDS:
                raise TimeoutError(f"{counter.total} of {wanted} transactions after {DEADLINE_SECONDS:.0f} s")
            for future in sending:
                if future.done():
                    future.result()
            time.sleep(POLL_SECONDS)
        seconds = time.perf_counter() - start
    cpu_after = network.read_cpu_seconds()
    number = len(load.transactions)
    return Throughput(
        per_second=number / seconds,
        cpu_microseconds={name: (cpu_after[name] - cpu_before.get(name, 0.0)) / number * 1e6 for name in cpu_after},
    )


def send_phases(network: Network, load: Load, counter: BlockCounter) -> None:
    """Send what must come before, each phase when the last one is in blocks."""
    for phase in load.phases:
        wanted = counter.count() + len(phase)
        send(network.validators[0].cometbft, encode_batches(phase))
        counter.wait_for(wanted)


def send(address: str, bodies: Sequence[bytes]) -> None:
    """Post encoded batches one after another; raises RuntimeError where one is refused."""
    connection = http.client.HTTPConnection(address, timeout=DEADLINE_SECONDS)
    for body in bodies:
        connection.request("POST", "/", body, {"Content-Type": "application/json"})
        answer = connection.getresponse().read()
        if b'"error"' in answer:
            errors = [each["error"] for each in json.loads(answer) if "error" in each]
            raise RuntimeError(f"refused: {errors[0]}")
    connection.close()


def encode_batches(transactions: Sequence[bytes]) -> list[bytes]:
    """Return request bodies."""
    return [_encode_batch(transactions[start : start + BATCH]) for start in range(0, len(transactions), BATCH)]


def check_all_succeeded(network: Network, load: Load) -> None:
    """Raise RuntimeError unless all was executed: what is refused or fails is cheaper, and in a block all the same."""
    wanted = len(load.transactions) + sum(map(len, load.phases))
    got = network.count_successes()
    if got != wanted:
        raise RuntimeError(f"{got} of {wanted} transactions succeeded")


def _make_lane(load: Load, lane: int) -> list[bytes]:
    """Return one connection's batches: all of its senders' transactions."""
    return encode_batches(
        [raw for raw, sender in zip(load.transactions, load.senders, strict=True) if sender % NUM_CONNECTIONS == lane]
    )


def _encode_batch(transactions: Sequence[bytes]) -> bytes:
    return json.dumps(
        [
            {
                "jsonrpc": "2.0",
                "id": index,
                "method": "broadcast_tx_async",
                "params": {"tx": base64.b64encode(raw).decode()},
            }
            for index, raw in enumerate(transactions)
        ]
    ).encode()
