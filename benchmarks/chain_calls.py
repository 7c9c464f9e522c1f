"""Reads: ``eth_call`` of ``Training.round`` a second, while the chain executes 100 transfers a second.

The peer is ``eth_chainId`` on the same connections: what JSON-RPC itself allows here.
"""

from __future__ import annotations

import http.client
import json
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import NamedTuple

from benchmarks.chain_nodes import BlockCounter, Network, run_network
from benchmarks.chain_signing import make_commits, make_transfers
from benchmarks.chain_throughput import encode_batches, send, send_phases
from chain.core.contracts.registry import CODECS
from chain.core.rounds.book import TRAINING

NUM_CLIENTS = 4
CALLS_A_BATCH = 20
NUM_CALLERS = 4_000
"""Different calls: more than one block sees."""
BACKGROUND_PER_SECOND = 100
_BACKGROUND_TICKS = 10
"""Batches of transfers a second."""


class _Method(NamedTuple):
    """What is called."""

    name: str
    params: tuple[object, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """Calls a second."""

    batched: float
    """``CALLS_A_BATCH`` in one request, each from another account, so that no answer is a remembered one."""
    batched_same: float
    """The same question all the time, as the workers of a run ask it: the node remembers answers between blocks."""
    single: float
    batched_peer: float
    single_peer: float


def measure_calls(seconds: float) -> Calls:
    """Measure each of the four for so many seconds on one validator with a round of 256 members."""
    background = make_transfers(int(BACKGROUND_PER_SECOND * seconds * 8) + 1_000)
    load = make_commits(1, others=background.alloc)
    data = "0x" + CODECS[TRAINING].by_name["round"].encode_inputs((1, 0)).hex()
    same = _Method("eth_call", ({"to": f"0x{TRAINING.hex()}", "data": data}, "latest"))
    distinct = [
        _Method("eth_call", ({"to": f"0x{TRAINING.hex()}", "from": f"0x{index:040x}", "data": data}, "latest"))
        for index in range(NUM_CALLERS)
    ]
    chain_id = [_Method("eth_chainId", ())] * NUM_CALLERS
    with (
        tempfile.TemporaryDirectory(prefix="benchmark-chain-") as directory,
        run_network(Path(directory), load.app_state, has_json_rpc=True) as network,
    ):
        send_phases(network, load, BlockCounter(network.validators[0].cometbft))
        _check_answer(network, same)
        stopping = Event()
        with ThreadPoolExecutor(1) as pool:
            sending = pool.submit(_send_steadily, network, background.transactions, stopping)
            try:
                figures = {
                    name: _measure(network, methods, size, seconds)
                    for name, methods, size in (
                        ("batched_peer", chain_id, CALLS_A_BATCH),
                        ("batched", distinct, CALLS_A_BATCH),
                        ("batched_same", [same] * NUM_CALLERS, CALLS_A_BATCH),
                        ("single_peer", chain_id, 1),
                        ("single", distinct, 1),
                    )
                }
            finally:
                stopping.set()
            sending.result()
    return Calls(**figures)


def _measure(network: Network, methods: Sequence[_Method], size: int, seconds: float) -> float:
    bodies = [_encode(methods[start : start + size]) for start in range(0, len(methods), size)]
    deadline = time.perf_counter() + seconds
    with ThreadPoolExecutor(NUM_CLIENTS) as pool:
        start = time.perf_counter()
        counts = list(pool.map(lambda client: _call_until(network, bodies, client, deadline), range(NUM_CLIENTS)))
        return sum(counts) * size / (time.perf_counter() - start)


def _call_until(network: Network, bodies: Sequence[bytes], client: int, deadline: float) -> int:
    """Send the bodies in turn, each client from another one on, and return how many were sent."""
    connection = http.client.HTTPConnection(network.validators[0].json_rpc, timeout=30)
    count = 0
    while time.perf_counter() < deadline:
        answer = _post(connection, bodies[(client * len(bodies) // NUM_CLIENTS + count) % len(bodies)])
        if b'"error"' in answer:
            raise RuntimeError(f"refused: {answer[:500]!r}")
        count += 1
    connection.close()
    return count


def _check_answer(network: Network, call: _Method) -> None:
    """See that what is measured is a round, not an error."""
    connection = http.client.HTTPConnection(network.validators[0].json_rpc, timeout=30)
    (answer,) = json.loads(_post(connection, _encode([call])))
    if len(answer.get("result", "")) < 1_000:
        raise RuntimeError(f"no round: {answer}")


def _encode(methods: Sequence[_Method]) -> bytes:
    return json.dumps(
        [
            {"jsonrpc": "2.0", "id": index, "method": method.name, "params": method.params}
            for index, method in enumerate(methods)
        ]
    ).encode()


def _post(connection: http.client.HTTPConnection, body: bytes) -> bytes:
    connection.request("POST", "/", body, {"Content-Type": "application/json"})
    return connection.getresponse().read()


def _send_steadily(network: Network, transactions: Sequence[bytes], stopping: Event) -> None:
    size = BACKGROUND_PER_SECOND // _BACKGROUND_TICKS
    start = time.perf_counter()
    for tick, first in enumerate(range(0, len(transactions), size)):
        if stopping.wait(max(0.0, start + tick / _BACKGROUND_TICKS - time.perf_counter())):
            return
        send(network.validators[0].cometbft, encode_batches(transactions[first : first + size]))
