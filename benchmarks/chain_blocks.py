"""The application alone, called as CometBFT calls it: how long a block takes, and what memory a long life takes.

Seconds are the processor's, of one thread, so a busy machine measures the same.
"""

from __future__ import annotations

import gc
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from coincurve import PrivateKey, PublicKey

from benchmarks.chain_signing import CHAIN_ID, Load, Wallet, fund, make_app_state, make_transfers
from chain.abci import abci_pb2 as pb
from chain.abci.application import ChainApplication
from chain.store import Store
from chain.system import CONTRACTS, process_system_genesis

TRANSFERS_A_BLOCK = 2_500
NUM_BLOCKS = 5
NUM_ACCOUNTS = 500
"""That send to each other in turn while memory is watched, so that the state stays as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockTime:
    """Of a block of ``TRANSFERS_A_BLOCK`` transfers whose signatures CheckTx has seen."""

    finalize_milliseconds: float
    commit_milliseconds: float
    recover_milliseconds: float
    """To recover as many senders and nothing else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """Of the process's own memory over many transactions."""

    megabytes: float
    """Between the first half of them and the end."""
    raw_megabytes: float
    """Bytes of the transactions in between: what keeping them would take at least."""
    num_transactions: int
    """In between."""


class _Core:
    """Plays CometBFT for one application."""

    def __init__(self, directory: Path, app_state: object) -> None:
        self._application = ChainApplication(Store(directory), CONTRACTS, process_system_genesis)
        request = pb.RequestInitChain(chain_id=CHAIN_ID, app_state_bytes=json.dumps(app_state).encode())
        self._application.process_init_chain(request)
        self._height = 0

    def check(self, transactions: Sequence[bytes]) -> None:
        for raw in transactions:
            answer = self._application.process_check_tx(pb.RequestCheckTx(tx=raw))
            if answer.code:
                raise RuntimeError(f"refused: {answer.log}")

    def run_block(self, transactions: Sequence[bytes]) -> tuple[float, float]:
        """Return the milliseconds of FinalizeBlock and of Commit."""
        self._height += 1
        request = pb.RequestFinalizeBlock(
            txs=transactions, height=self._height, hash=bytes(32), proposer_address=bytes(20)
        )
        start = time.process_time()
        response = self._application.process_finalize_block(request)
        middle = time.process_time()
        self._application.process_commit(pb.RequestCommit())
        end = time.process_time()
        failed = [result.log for result in response.tx_results if result.code]
        if failed:
            raise RuntimeError(f"{len(failed)} transactions failed: {failed[0]}")
        return (middle - start) * 1e3, (end - middle) * 1e3


def measure_block_time() -> BlockTime:
    """Measure some blocks of transfers to new accounts."""
    load = make_transfers(NUM_BLOCKS * TRANSFERS_A_BLOCK)
    with _make_core(load) as core:
        times = []
        for start in range(0, len(load.transactions), TRANSFERS_A_BLOCK):
            block = load.transactions[start : start + TRANSFERS_A_BLOCK]
            core.check(block)
            times.append(core.run_block(block))
    return BlockTime(
        finalize_milliseconds=median(finalize for finalize, _ in times),
        commit_milliseconds=median(commit for _, commit in times),
        recover_milliseconds=_measure_recovery(),
    )


def measure_growth(num_transactions: int) -> Growth:
    """Send transfers between the same accounts and compare the memory at half of them with that at the end."""
    wallets = [Wallet(1_000 + index) for index in range(NUM_ACCOUNTS)]
    app_state = make_app_state(fund(wallets), {})
    half = num_transactions // 2
    raw_bytes = done = 0
    before = 0.0
    with tempfile.TemporaryDirectory(prefix="benchmark-chain-") as directory:
        core = _Core(Path(directory), app_state)
        while done < num_transactions:
            block = [
                wallets[index % NUM_ACCOUNTS].sign(wallets[(index + 1) % NUM_ACCOUNTS].address, gas=21_000, value=1)
                for index in range(done, done + TRANSFERS_A_BLOCK)
            ]
            core.check(block)
            core.run_block(block)
            done += len(block)
            if not before and done >= half:
                before = _read_own_megabytes()
                half = done
            elif before:
                raw_bytes += sum(map(len, block))
        after = _read_own_megabytes()
    return Growth(megabytes=after - before, raw_megabytes=raw_bytes / 1e6, num_transactions=done - half)


@contextmanager
def _make_core(load: Load) -> Iterator[_Core]:
    with tempfile.TemporaryDirectory(prefix="benchmark-chain-") as directory:
        yield _Core(Path(directory), load.app_state)


def _measure_recovery() -> float:
    digest = bytes(range(32))
    signature = PrivateKey(digest).sign_recoverable(digest, hasher=None)
    start = time.process_time()
    for _ in range(TRANSFERS_A_BLOCK):
        PublicKey.from_signature_and_message(signature, digest, hasher=None)
    return (time.process_time() - start) * 1e3


def _read_own_megabytes() -> float:
    """Return the memory that is this process's alone, without the pages of LMDB's file and without garbage."""
    gc.collect()
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise RuntimeError("/proc/self/status has no RssAnon: this row needs Linux")
