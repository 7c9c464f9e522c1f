"""LMDB: all of a block or nothing, seen by other processes as one block."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chain import store as module
from chain import stored_states
from chain.core.blocks import seal_block
from chain.core.executor import process_block, simulate_call
from chain.core.genesis import Genesis
from chain.core.records import Transaction
from chain.core.state import Overlay
from chain.core.types import Address, Amount, Hash, Height
from chain.store import Candidate, Reader, Store, StoreMissing
from chain.stored_states import iterate_all

CODE_READ = """
import sys
from pathlib import Path
from chain.store import Reader
with Reader(Path(sys.argv[1])) as reader:
    print("open", flush=True)
    for line in sys.stdin:
        with reader.snapshot() as snapshot:
            print(snapshot.height, snapshot.state.get(b"x/%d" % snapshot.height), flush=True)
"""

CODE_WRITE = """
import sys
from pathlib import Path
from chain.core.types import Height
from chain.store import Store
sys.path.insert(0, sys.argv[2])
import test_store
store = Store(Path(sys.argv[1]))
height = store.committed.height
while True:
    height += 1
    store.commit(test_store.make_candidate(height, [(b"x/%d" % height, bytes(2000)), (b"x/last", b"%d" % height)]))
    print(height, flush=True)
"""


def make_candidate(height: int, changes: list[tuple[bytes, bytes | None]]) -> Candidate:
    """Make a block without transactions."""
    block = seal_block(
        height=Height(height),
        parent_hash=Hash(bytes(32)),
        time_seconds=height,
        app_hash=height.to_bytes(32, "big"),
        proposer=Address(bytes(20)),
        gas_limit=1,
        base_fee=Amount(2**200),
        cometbft_hash=bytes(32),
        receipts=(),
        block_logs=(),
        size_bytes=0,
    )
    return Candidate(
        height=Height(height),
        app_hash=block.app_hash,
        changes=changes,
        block=block,
        receipts=(),
        transactions=(),
        timer_logs=(),
    )


def test_everything_of_a_block_comes_back(
    tmp_path: Path, alice: Any, state: Overlay, genesis: Genesis, make_environment: Any, contracts: Any
) -> None:
    counter = Address(b"\x77" * 20)
    decoded: list[Transaction] = [
        alice.transaction(0),
        alice.transaction(1, to=counter, data=b"\x00", gas=90_000),
        alice.transaction(2, to=counter, data=b"\x05", gas=90_000, gasPrice=10**10),
    ]
    execution = process_block(state, make_environment(7), decoded, contracts)
    block = seal_block(
        height=Height(7),
        parent_hash=Hash(bytes(32)),
        time_seconds=9,
        app_hash=b"\x05" * 32,
        proposer=Address(bytes(20)),
        gas_limit=1,
        base_fee=Amount(10**9),
        cometbft_hash=b"\x06" * 32,
        receipts=execution.receipts,
        block_logs=(),
        size_bytes=5,
    )
    store = Store(tmp_path / "app")
    store.commit(
        Candidate(
            height=Height(7),
            app_hash=block.app_hash,
            changes=state.changes(),
            block=block,
            receipts=execution.receipts,
            transactions=decoded,
            timer_logs=execution.timer_logs,
        )
    )
    store.close()
    with Reader(tmp_path / "app") as reader, reader.snapshot() as snapshot:
        assert snapshot.height == 7
        assert snapshot.app_hash == block.app_hash
        assert snapshot.block(7) == block
        assert snapshot.height_of_block_hash(block.hash) == 7
        assert snapshot.receipts(7) == list(execution.receipts)
        assert snapshot.timer_logs(7) == list(execution.timer_logs) != []
        for index, transaction in enumerate(decoded):
            assert snapshot.transaction(transaction.hash) == (transaction, 7, index)
        assert snapshot.genesis_info() == genesis.parameters
        assert snapshot.environment().height == 7
        assert snapshot.environment(is_pending=True).height == 8
        assert dict(iterate_all(snapshot.state)) == {key: value for key, value in state.changes() if value is not None}
        for unknown in (b"", bytes(32)):
            assert snapshot.transaction(unknown) is None
            assert snapshot.height_of_block_hash(unknown) is None
        for height in (-1, 0, 8, 2**64 - 1):
            assert snapshot.block(height) is None
            assert snapshot.receipts(height) == []
        call = simulate_call(
            snapshot.state,
            snapshot.environment(),
            sender=alice.address,
            to=counter,
            data=b"\x05",
            gas_limit=10**6,
            contracts=contracts,
        )
        assert call.output == (2).to_bytes(32, "big")


def test_state_is_ordered_and_deletes(tmp_path: Path) -> None:
    store = Store(tmp_path / "app")
    store.commit(make_candidate(1, [(b"k/b", b"2"), (b"k/a", b"1"), (b"k/c", b""), (b"l/a", b"9")]))
    store.commit(make_candidate(2, [(b"k/a", None), (b"k/missing", None)]))
    assert list(store.committed.state.iterate(b"k/", b"k0")) == [(b"k/b", b"2"), (b"k/c", b"")]
    assert list(store.committed.state.iterate(b"m", b"n")) == []
    assert Overlay(store.committed.state).get(b"k/c") == b""
    store.wipe()
    assert store.committed.is_empty
    assert list(iterate_all(store.committed.state)) == []
    store.close()


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.dictionaries(
            st.sampled_from([b"x/%d" % number for number in range(6)]),
            st.none() | st.sampled_from([b"", b"a", bytes(300)]),
        ),
        max_size=8,
    ),
    st.integers(1, 4),
)
def test_what_the_writer_remembers_is_what_the_file_holds(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    blocks: list[dict[bytes, bytes | None]],
    max_known: int,
) -> None:
    monkeypatch.setattr(stored_states, "MAX_KNOWN_KEYS", max_known)
    directory = tmp_path_factory.mktemp("known")
    keys = [b"x/%d" % number for number in range(6)]
    expected: dict[bytes, bytes | None] = {}
    store = Store(directory)
    history = [dict(expected)]
    for height, changes in enumerate(blocks, 1):
        store.commit(make_candidate(height, sorted(changes.items())))
        expected.update(changes)
        history.append(dict(expected))
        assert [store.committed.state.get(key) for key in keys] == [expected.get(key) for key in keys]
        assert len(store._known) <= max_known
    assert dict(iterate_all(store.committed.state)) == {k: v for k, v in expected.items() if v is not None}
    for height, then in enumerate(history[1:], 1):  # what blocks have changed was written down rightly
        past = store.committed.changed_since(height)
        assert past is not None
        assert [past.get(key, expected.get(key)) for key in keys] == [then.get(key) for key in keys]
    store.wipe()
    assert [store.committed.state.get(key) for key in keys] == [None] * len(keys)
    store.close()


def test_invalid_directory(tmp_path: Path) -> None:
    with pytest.raises(StoreMissing, match="chain-node start"):
        Reader(tmp_path)


@pytest.mark.integration
def test_map_grows_under_a_reader_of_another_process(tmp_path: Path) -> None:
    store = Store(tmp_path / "app", map_bytes=1 << 18)
    store.commit(make_candidate(0, [(b"x/0", b"start")]))
    command = [sys.executable, "-c", CODE_READ, str(tmp_path / "app")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdin is not None
        assert reader.stdout is not None
        try:
            assert reader.stdout.readline() == "open\n"
            for height in range(1, 30):
                store.commit(make_candidate(height, [(b"x/%d" % height, b"y" * 60_000)]))
                reader.stdin.write("\n")
                reader.stdin.flush()
                number, value = reader.stdout.readline().split(" ", 1)
                assert int(number) == height
                assert len(value) > 60_000
            reader.stdin.close()
            assert reader.wait(10) == 0
        finally:
            reader.kill()
    assert (tmp_path / "app" / "data.mdb").stat().st_size > 1 << 18
    store.close()


@pytest.mark.integration
def test_killed_reader_does_not_make_the_file_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_READER_CHECK_COMMITS", 5)
    monkeypatch.setattr(module, "HISTORY_BLOCKS", 4)
    store = Store(tmp_path / "app")
    store.commit(make_candidate(0, [(b"x/0", b"start")]))
    holding = CODE_READ.replace("print(snapshot.height", "sys.stdin.readline(); print(snapshot.height")
    command = [sys.executable, "-c", holding.replace('print("open", flush=True)', ""), str(tmp_path / "app")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, text=True) as reader:
        assert reader.stdin is not None
        reader.stdin.write("\n")
        reader.stdin.flush()
        deadline = time.monotonic() + 20
        while len(store._env.readers().splitlines()) < 3:
            assert time.monotonic() < deadline, "the reader holds a snapshot"
            time.sleep(0.01)
        reader.kill()
    for height in range(1, 60):
        store.commit(make_candidate(height, [(b"x/value", bytes((height,)) * 100_000)]))
    assert (tmp_path / "app" / "data.mdb").stat().st_size < 30 * 100_000
    store.close()


@pytest.mark.integration
def test_killed_writer_leaves_whole_blocks(tmp_path: Path) -> None:
    last = 0
    for _ in range(3):
        command = [sys.executable, "-c", CODE_WRITE, str(tmp_path / "app"), str(Path(__file__).parent)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            try:
                for _ in range(20):
                    last = int(writer.stdout.readline())
            finally:
                os.kill(writer.pid, signal.SIGKILL)
        with Reader(tmp_path / "app") as reader, reader.snapshot() as snapshot:
            height = snapshot.height
            assert height >= last, "a block that was reported is there"
            assert snapshot.app_hash == height.to_bytes(32, "big")
            assert snapshot.state.get(b"x/last") == b"%d" % height
            assert snapshot.block(height) is not None
            assert snapshot.block(height + 1) is None
            assert snapshot.state.get(b"x/%d" % (height + 1)) is None
