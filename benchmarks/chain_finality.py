"""Time to finality at a steady rate, as a client sees it: from sending a transaction to being told of its block.

Every 20 ms a batch goes to the next validator; one websocket at the first validator hears of each block once it is
committed there.
"""

from __future__ import annotations

import asyncio
import base64
import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from benchmarks.chain_nodes import DEADLINE_SECONDS, Network, run_network
from benchmarks.chain_signing import Load, make_pairs
from benchmarks.chain_throughput import check_all_succeeded, encode_batches

OFFERED_PER_SECOND = 500
TICKS_PER_SECOND = 50
_SUBSCRIBE = {"jsonrpc": "2.0", "id": 0, "method": "subscribe", "params": {"query": "tm.event='NewBlock'"}}
_MAX_BLOCK_MESSAGE_BYTES = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Finality:
    """Seconds from sending to hearing, by share of the transactions."""

    p50: float
    p99: float
    offered_per_second: float
    """What the client really sent: less than it should on a machine that is too slow."""


def measure_pair(load: Load, *, num_validators: int) -> tuple[Finality, Finality]:
    """Measure (kvstore, our application) with transactions of the same size and number."""
    pairs = make_pairs(len(load.transactions), load.mean_bytes)
    with tempfile.TemporaryDirectory(prefix="benchmark-chain-") as directory:
        with run_network(Path(directory) / "k", {}, num_validators=num_validators, is_kvstore=True) as network:
            kvstore = asyncio.run(_measure(network, pairs.transactions))
        with run_network(Path(directory) / "c", load.app_state, num_validators=num_validators) as network:
            chain = asyncio.run(_measure(network, load.transactions))
            check_all_succeeded(network, load)
    return kvstore, chain


async def _measure(network: Network, transactions: Sequence[bytes]) -> Finality:
    addresses = [validator.cometbft for validator in network.validators]
    sent: dict[bytes, float] = {}
    heard: dict[bytes, float] = {}
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(f"ws://{addresses[0]}/websocket", max_msg_size=_MAX_BLOCK_MESSAGE_BYTES) as socket,
        asyncio.timeout(DEADLINE_SECONDS),
    ):
        await socket.send_json(_SUBSCRIBE)
        await socket.receive_json()
        listening = asyncio.create_task(_listen(socket, heard, len(transactions)))
        started = time.perf_counter()
        await _send(session, addresses, transactions, sent)
        seconds = time.perf_counter() - started
        await listening
    latencies = sorted(heard[raw] - sent[raw] for raw in transactions)
    return Finality(
        p50=latencies[len(latencies) // 2],
        p99=latencies[len(latencies) * 99 // 100],
        offered_per_second=len(transactions) / seconds,
    )


async def _send(
    session: aiohttp.ClientSession, addresses: Sequence[str], transactions: Sequence[bytes], sent: dict[bytes, float]
) -> None:
    """Send at the rate that is asked for, whether or not answers come."""
    size = OFFERED_PER_SECOND // TICKS_PER_SECOND
    posting: list[asyncio.Task[None]] = []
    start = time.perf_counter()
    for tick, first in enumerate(range(0, len(transactions), size)):
        await asyncio.sleep(max(0.0, start + tick / TICKS_PER_SECOND - time.perf_counter()))
        batch = transactions[first : first + size]
        (body,) = encode_batches(batch)
        sent |= dict.fromkeys(batch, time.perf_counter())
        posting.append(asyncio.create_task(_post(session, addresses[tick % len(addresses)], body)))
    await asyncio.gather(*posting)


async def _post(session: aiohttp.ClientSession, address: str, body: bytes) -> None:
    async with session.post(f"http://{address}/", data=body, headers={"Content-Type": "application/json"}) as answer:
        text = await answer.text()
        if '"error"' in text:
            raise RuntimeError(f"refused: {text[:500]}")


async def _listen(socket: aiohttp.ClientWebSocketResponse, heard: dict[bytes, float], wanted: int) -> None:
    while len(heard) < wanted:
        message = await socket.receive()
        now = time.perf_counter()
        if message.type is not aiohttp.WSMsgType.TEXT:
            raise RuntimeError(f"the subscription ended after {len(heard)} of {wanted} transactions: {message.type}")
        value = json.loads(message.data)["result"]["data"]["value"]
        for text in value["block"]["data"]["txs"]:
            heard.setdefault(base64.b64decode(text), now)
