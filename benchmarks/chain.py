"""The chain's speed and endurance, each figure beside a peer in the same invocation.

For throughput and finality the peer is CometBFT's built-in kvstore with the same binary, configuration, number of
validators and load, measured right before: it checks no signature and keeps no state on disk, so it is the ceiling
of this machine.  ``make bench-chain``, from two to six minutes on two cores; names of rows measure only those;
FULL=1 repeats throughput five times and watches memory over a million transactions, some 15 minutes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks import chain_blocks, chain_calls, chain_finality, chain_throughput
from benchmarks.chain_nodes import describe_timing
from benchmarks.chain_signing import Load, make_commits, make_transfers, make_writes
from benchmarks.chain_throughput import NUM_CONNECTIONS, Throughput
from benchmarks.report import Goal, Row, write_report
from chain.core.genesis import DEFAULT_GAS_LIMIT

KVSTORE = "CometBFT's built-in kvstore"
NUM_VALIDATORS = 4
NUM_PAIRS = 40_000
"""Sent to kvstore with one validator: it takes some two seconds for them; its mempool holds 50,000."""
NUM_TRANSFERS = 30_000
NUM_WRITES = 8_000
NUM_RUNS = 8
"""Of 256 members, one commit each."""
NUM_NETWORK_TRANSFERS = 12_000
"""Sent to four validators."""
FINALITY_SECONDS = 12
CALL_SECONDS = 4.0
EVM_GAS_LIMIT = 100_000_000
"""Of a block in ``solidity_1v_wide``: a chain whose validators trust its users' contracts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """How much is measured."""

    repeats: int
    """Of each throughput; the median counts."""
    memory_transactions: int


QUICK = Extent(repeats=1, memory_transactions=150_000)
FULL = Extent(repeats=5, memory_transactions=1_000_000)


def main(wanted: list[str], extent: Extent) -> None:
    """Measure the wanted rows, all by default, and write the report."""
    unknown = set(wanted) - set(MEASUREMENTS)
    if unknown:
        raise SystemExit(f"no row {sorted(unknown)[0]}; there are: {', '.join(MEASUREMENTS)}")
    rows: list[Row] = []
    for name, measure in MEASUREMENTS.items():
        if not wanted or name in wanted:
            print(f"measuring {name}", file=sys.stderr, flush=True)
            found = measure(extent)
            for row in found:
                print(f"  {row.name}: {row.value:,.4g} {row.unit}, ratio {row.ratio:.3g}", file=sys.stderr, flush=True)
            rows += found
    write_report("chain", rows)


def _measure_transfers(extent: Extent) -> list[Row]:
    rows = _measure_throughput(
        "transfer_1v", make_transfers(NUM_TRANSFERS), extent, goal=Goal(least=0.35, is_ratio=True)
    )
    kvstore = rows[0].peer_value
    return [
        Row(
            name="kvstore_1v",
            value=kvstore,
            unit="tx/s",
            peer=KVSTORE,
            peer_value=kvstore,
            conditions=f"{NUM_PAIRS:,} pairs of a transfer's size, otherwise the same",
        ),
        *rows,
    ]


def _measure_commits(extent: Extent) -> list[Row]:
    return _measure_throughput(
        "commit_1v", make_commits(NUM_RUNS), extent, goal=Goal(least=0.15, is_ratio=True), num_pairs=20_000
    )


def _measure_writes(extent: Extent) -> list[Row]:
    return [
        *_measure_throughput(
            "solidity_1v",
            make_writes(NUM_WRITES, options={"gasLimit": DEFAULT_GAS_LIMIT}),
            extent,
            goal=Goal(least=0.10, is_ratio=True),
        ),
        *_measure_throughput(
            "solidity_1v_wide", make_writes(NUM_WRITES, options={"evmGasLimit": EVM_GAS_LIMIT}), extent, goal=None
        ),
    ]


def _measure_network(extent: Extent) -> list[Row]:
    return _measure_throughput(
        "transfer_4v",
        make_transfers(NUM_NETWORK_TRANSFERS),
        extent,
        goal=Goal(least=2_500),
        num_validators=NUM_VALIDATORS,
        num_pairs=NUM_NETWORK_TRANSFERS,
    )


def _measure_throughput(
    name: str,
    load: Load,
    extent: Extent,
    *,
    goal: Goal | None,
    num_validators: int = 1,
    num_pairs: int = NUM_PAIRS,
) -> list[Row]:
    pairs = [
        chain_throughput.measure_pair(load, num_validators=num_validators, num_pairs_sent=num_pairs)
        for _ in range(extent.repeats)
    ]
    middle = sorted(pairs, key=lambda pair: pair.ratio)[len(pairs) // 2]
    return [
        Row(
            name=name,
            value=middle.chain.per_second,
            unit="tx/s",
            peer=KVSTORE,
            peer_value=middle.kvstore.per_second,
            conditions=f"{len(load.transactions):,} transactions of {load.mean_bytes} bytes, {NUM_CONNECTIONS}"
            f" connections, {num_validators} validators, {extent.repeats} times, {describe_timing()};"
            f" {_describe_cpu(middle.chain)}; kvstore {_describe_cpu(middle.kvstore)}",
            goal=goal,
        )
    ]


def _describe_cpu(throughput: Throughput) -> str:
    return throughput.describe_cpu()


def _measure_finality(extent: Extent) -> list[Row]:
    load = make_transfers(FINALITY_SECONDS * chain_finality.OFFERED_PER_SECOND)
    kvstore, chain = chain_finality.measure_pair(load, num_validators=NUM_VALIDATORS)
    conditions = (
        f"{chain.offered_per_second:.0f} transfers a second over {FINALITY_SECONDS} s to {NUM_VALIDATORS} validators"
        f" in turn, from sending to hearing of the block, {describe_timing()}"
    )
    return [
        Row(
            name=f"finality_4v_{name}",
            value=ours,
            unit="s",
            peer=KVSTORE,
            peer_value=theirs,
            conditions=conditions,
            goal=Goal(most=most),
        )
        for name, ours, theirs, most in (("p50", chain.p50, kvstore.p50, 0.6), ("p99", chain.p99, kvstore.p99, 1.5))
    ]


def _measure_calls(extent: Extent) -> list[Row]:
    calls = chain_calls.measure_calls(CALL_SECONDS)
    shared = (
        f"{chain_calls.NUM_CLIENTS} connections, {chain_calls.BACKGROUND_PER_SECOND} transfers a second meanwhile,"
        f" {os.cpu_count()} cores shared with the clients"
    )
    return [
        Row(
            name="eth_call",
            value=calls.batched,
            unit="calls/s",
            peer="eth_chainId",
            peer_value=calls.batched_peer,
            conditions=f"Training.round in batches of {chain_calls.CALLS_A_BATCH}, each from another account, {shared}",
            goal=Goal(least=3_000),
        ),
        Row(
            name="eth_call_same",
            value=calls.batched_same,
            unit="calls/s",
            peer="eth_chainId",
            peer_value=calls.batched_peer,
            conditions="the same call all the time, otherwise the same: answers are remembered between blocks",
        ),
        Row(
            name="eth_call_single",
            value=calls.single,
            unit="calls/s",
            peer="eth_chainId",
            peer_value=calls.single_peer,
            conditions=f"one Training.round in a request, {shared}",
        ),
    ]


def _measure_block_time(extent: Extent) -> list[Row]:
    found = chain_blocks.measure_block_time()
    return [
        Row(
            name="finalize_2500",
            value=found.finalize_milliseconds,
            unit="ms",
            peer="recovering as many senders",
            peer_value=found.recover_milliseconds,
            conditions=f"FinalizeBlock of {chain_blocks.TRANSFERS_A_BLOCK:,} transfers, one thread's processor time,"
            f" median of {chain_blocks.NUM_BLOCKS}; Commit takes {found.commit_milliseconds:.0f} ms of it more",
            goal=Goal(most=200),
        )
    ]


def _measure_memory(extent: Extent) -> list[Row]:
    growth = chain_blocks.measure_growth(extent.memory_transactions)
    return [
        Row(
            name="memory_flat",
            value=growth.megabytes,
            unit="MB",
            peer="keeping the raw transactions",
            peer_value=growth.raw_megabytes,
            conditions=f"growth of the application's own memory over {growth.num_transactions:,} transfers between"
            f" {chain_blocks.NUM_ACCOUNTS} accounts, after as many before",
            goal=Goal(most=0.2, is_ratio=True),
        )
    ]


MEASUREMENTS: dict[str, Callable[[Extent], list[Row]]] = {
    "transfer_1v": _measure_transfers,
    "commit_1v": _measure_commits,
    "solidity_1v": _measure_writes,
    "transfer_4v": _measure_network,
    "finality_4v": _measure_finality,
    "eth_call": _measure_calls,
    "finalize_2500": _measure_block_time,
    "memory_flat": _measure_memory,
}
"""By the name of the row, or of what its rows have in common."""


if __name__ == "__main__":
    main(sys.argv[1:], FULL if os.environ.get("FULL", "") not in ("", "0", "no", "false") else QUICK)
