"""The node's one way to the chain's LMDB, asked by many threads at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

from chain.rpc.dispatch import ChainDatabase
from chain.store import Reader, Store

NUM_THREADS = 8


def test_threads_that_ask_first_at_the_same_moment_open_it_once(tmp_path: Path) -> None:
    Store(tmp_path).close()
    for _ in range(20):
        database = ChainDatabase(tmp_path)
        barrier = Barrier(NUM_THREADS, timeout=20.0)

        def ask(database: ChainDatabase = database, barrier: Barrier = barrier) -> Reader:
            barrier.wait()
            return database.reader()

        with ThreadPoolExecutor(NUM_THREADS) as pool:
            readers = [future.result(timeout=20.0) for future in [pool.submit(ask) for _ in range(NUM_THREADS)]]
        database.close()
        assert all(reader is readers[0] for reader in readers)
