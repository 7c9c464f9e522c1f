"""``/api/overview``: one JSON object with all that the page shows, from one snapshot.

It is the same for every client at one height, so it is made once a block and kept.
"""

from __future__ import annotations

import threading
from typing import Any

from chain.core.contracts.params import BLOCKS_PER_MONTH
from chain.rpc.activity import list_transactions
from chain.rpc.contract_views import read_view
from chain.rpc.session import Session

NUM_RUNS = 20
"""Newest runs that are listed."""
NUM_ROUNDS = 16
"""Newest rounds of the chosen run."""
NUM_BLOCKS = 60
"""Newest blocks."""
NUM_TRANSACTIONS = 20
"""Newest transactions."""
MAX_SEARCHED_BLOCKS = 500
"""How far back transactions are looked for."""
NUM_PROPOSALS = 10
"""Newest governance proposals."""
MAX_EVALUATIONS = 2_048
"""Newest held-out losses of the curve."""
_PAGE = 256
"""Evaluations a call (Training.evaluations)."""

MAX_SETTLED = 1_000
"""Settled rounds that are kept."""

SettledRounds = dict[tuple[int, int], dict[str, Any]]
"""(run, round) -> what is shown of it: two thirds of the work of an overview."""


class OverviewCache:
    """The overview by run, as of the newest height; threads may share it."""

    def __init__(self) -> None:
        """Start empty."""
        self._lock = threading.Lock()
        self._height = -1
        self._by_run: dict[int | None, dict[str, Any]] = {}
        self._settled: SettledRounds = {}
        self._newest: list[dict[str, Any]] = []

    def get(self, session: Session, run: int | None) -> dict[str, Any]:
        """Return the overview, made at most once a block and run."""
        with self._lock:
            height = session.snapshot.height
            if height < self._height:
                return self._by_run.get(run) or self._compute(session, run)
            if height > self._height:
                self._collect_transactions(session, height)
                self._height = height
                self._by_run = {}
                if len(self._settled) > MAX_SETTLED:
                    self._settled.clear()
            if run not in self._by_run:
                self._by_run[run] = self._compute(session, run)
            return self._by_run[run]

    def _compute(self, session: Session, run: int | None) -> dict[str, Any]:
        return {**compute_overview(session, run, self._settled), "transactions": self._newest}

    def _collect_transactions(self, session: Session, height: int) -> None:
        """Put what came since the last look before the rest, newest first."""
        snapshot = session.snapshot
        oldest = max(self._height + 1, height - MAX_SEARCHED_BLOCKS + 1, snapshot.first_height, 0)
        found: list[dict[str, Any]] = []
        for each in range(height, oldest - 1, -1):
            block = snapshot.block(each)
            if block is not None and block.transactions:
                found += reversed(list_transactions(snapshot, block, NUM_TRANSACTIONS))
            if len(found) >= NUM_TRANSACTIONS:
                break
        self._newest = [*found, *self._newest][:NUM_TRANSACTIONS]


def compute_overview(session: Session, run: int | None, settled: SettledRounds) -> dict[str, Any]:
    """Read chain, runs, the chosen run (the newest where None), storage and staking; ``settled`` is read and filled."""
    num_runs = read_view(session, "Training", "numRuns")
    chosen = num_runs if run is None else run
    return {
        "chain": _chain(session),
        "runs": [
            read_view(session, "Training", "run", each) for each in range(num_runs, max(0, num_runs - NUM_RUNS), -1)
        ],
        "run": _run(session, chosen, settled) if 1 <= chosen <= num_runs else None,
        "storage": {
            "epoch": read_view(session, "Storage", "epoch"),
            "nodes": read_view(session, "Storage", "nodes"),
            "tiers": read_view(session, "Storage", "tiers"),
            "blocksPerMonth": BLOCKS_PER_MONTH,
        },
        "staking": _staking(session),
    }


def _staking(session: Session) -> dict[str, Any]:
    count = read_view(session, "Staking", "numProposals")
    return {
        "totalBonded": read_view(session, "Staking", "totalBonded"),
        "params": read_view(session, "Staking", "stakingParams"),
        "validators": read_view(session, "Staking", "validators"),
        "numProposals": count,
        "proposals": [
            read_view(session, "Staking", "proposal", each) for each in range(count, max(0, count - NUM_PROPOSALS), -1)
        ],
    }


def _chain(session: Session) -> dict[str, Any]:
    snapshot = session.snapshot
    parameters = snapshot.genesis_info()
    heights = range(snapshot.height, max(-1, snapshot.height - NUM_BLOCKS), -1)
    blocks = [block for block in map(snapshot.block, heights) if block is not None]
    return {
        "height": snapshot.height,
        "chainId": parameters.chain_id,
        "evmChainId": parameters.evm_chain_id,
        "genesisHash": "0x" + parameters.genesis_hash.hex(),
        "appHash": "0x" + snapshot.app_hash.hex(),
        "baseFee": str(parameters.base_fee),
        "gasLimit": parameters.gas_limit,
        "blocks": [
            {
                "height": block.height,
                "time": block.time_seconds,
                "transactions": len(block.transactions),
                "gasUsed": block.gas_used,
                "proposer": "0x" + block.proposer.hex(),
            }
            for block in blocks
        ],
    }


def _run(session: Session, run: int, settled: SettledRounds) -> dict[str, Any]:
    info = read_view(session, "Training", "run", run)
    newest = info["numOpened"]
    return {
        "info": info,
        "members": read_view(session, "Training", "members", run),
        "rounds": [
            _round(session, run, each, settled) for each in range(newest - 1, max(-1, newest - 1 - NUM_ROUNDS), -1)
        ],
        "evaluations": _evaluations(session, run, info["headVersion"]),
    }


def _round(session: Session, run: int, index: int, settled: SettledRounds) -> dict[str, Any]:
    info = read_view(session, "Training", "round", run, index)
    known = settled.get((run, index))
    if known is not None and known["info"] == info:  # a run that was reverted settles its rounds anew
        return known
    found = {
        "info": info,
        "updates": read_view(session, "Training", "updates", run, index),
        "votes": read_view(session, "Training", "votes", run, index),
    }
    if info["state"] in ("FINAL", "VOID"):
        settled[run, index] = found
    return found


def _evaluations(session: Session, run: int, head: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    start = max(0, head - MAX_EVALUATIONS)
    while len(found) < MAX_EVALUATIONS:
        page = read_view(session, "Training", "evaluations", run, start, _PAGE)
        found += page
        if len(page) < _PAGE:
            break
        start = page[-1]["version"] + 1
    return found
