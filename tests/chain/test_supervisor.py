"""What the supervisor does with children that end again and again."""

from __future__ import annotations

import os
import sys
import time
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from chain import supervisor
from chain.abci.errors import UnsupportedRules
from chain.abci.server import HandlerFailed
from chain.child import Child, ChildFailed
from chain.documents import BrokenFile
from chain.home import (
    AppAheadOfCore,
    AppBelowBase,
    ApplicationTooOld,
    HomeError,
    HomeNotWritable,
    NodeRuns,
    find_supervisor,
    hold_home,
)
from chain.node_log import NodeLog
from chain.supervisor import NodePlan, Pause, Supervisor
from contracts.bindings.failures import describe_failure


def _make(tmp_path: Path) -> Supervisor:
    return Supervisor(NodePlan(home=tmp_path, cometbft=tmp_path, rpc_host="127.0.0.1", rpc_port=1))


def test_rpc_that_dies_for_ever_never_ends_the_validator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node: Any = _make(tmp_path)
    now = [1_000.0]
    starts: list[float] = []
    monkeypatch.setattr(supervisor, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def start() -> None:
        starts.append(now[0])
        node._rpc = SimpleNamespace(name="rpc", exit_code=-11)

    node._start_rpc = start
    start()
    while now[0] < 2_000.0:
        node._restart_what_ended()
        now[0] += 0.05
    gaps = [later - earlier for earlier, later in pairwise(starts)]
    assert len(starts) > supervisor.MAX_RESTARTS + 10, "it goes on for ever"
    assert gaps[0] < 0.2, "the first time at once"
    assert max(gaps) < supervisor.MAX_PAUSE_SECONDS + 1
    assert len(starts) < 60, "and not in a busy loop"


def test_pause_is_forgotten_after_the_window() -> None:
    pause = Pause()
    assert [pause.count(1_000.0 + index) for index in range(4)] == [0.0, 0.5, 1.0, 2.0]
    assert pause.count(1_004.0 + supervisor.RESTART_WINDOW_SECONDS) == 0.0


def test_consensus_that_dies_for_ever_is_given_up(tmp_path: Path) -> None:
    node: Any = _make(tmp_path)
    dead = SimpleNamespace(name="abci", exit_code=1, read_tail=lambda: "error: disk full; next: free some")
    for _ in range(supervisor.MAX_RESTARTS):
        node._count_restart(dead, "ended with exit code 1")
    with pytest.raises(ChildFailed, match="after 5 restarts") as failed:
        node._count_restart(dead, "ended with exit code 1")
    said = describe_failure(failed.value).splitlines()
    assert said[-2:] == [
        "error: disk full, next: free some",
        f"next:  read {tmp_path}/logs/node.log; `chain-node doctor --home {tmp_path}` looks for the usual causes",
    ]


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("error during handshake: app block height (9) is higher than core (4)", AppAheadOfCore),
        ("error on replay: app block height (0) is too far below block store base (24)", AppBelowBase),
        ("* error decoding 'consensus.timeout_propose': time: invalid duration \"abc\"", BrokenFile),
        ("ERROR: error in config file: error in [p2p] section: send_rate can't be negative", BrokenFile),
    ],
)
def test_what_no_restart_mends_ends_the_node_at_once(tmp_path: Path, said: str, expected: type[HomeError]) -> None:
    """As CometBFT v0.38.25 says it."""
    node: Any = _make(tmp_path)
    node._app = None
    node_log = NodeLog(tmp_path / "log")
    node._core = Child("cometbft", [sys.executable, "-c", f"print({said!r}); exit(1)"], node_log)
    node._core._process.wait(10)
    with pytest.raises(expected, match=r"; next: "):
        node._restart_what_ended()
    node_log.close()


def _fail(node: Any, node_log: NodeLog, said: str) -> None:
    """As it goes: CometBFT is seen to end first, because the application still writes its traceback."""
    script = f"import signal, sys, time; print({said!r}, flush=True); time.sleep(0.1); sys.exit(1)"
    node._app = Child("abci", [sys.executable, "-c", script], node_log)
    node._core = Child("cometbft", [sys.executable, "-c", "print('connection reset by peer'); exit(1)"], node_log)
    node._core._process.wait(10)
    while not node._app.read_tail():
        time.sleep(0.02)  # until its first line is here
    node._restart_what_ended()


def test_rules_that_are_too_new_end_the_node_at_once(tmp_path: Path) -> None:
    node: Any = _make(tmp_path)
    node_log = NodeLog(tmp_path / "log")
    failure = HandlerFailed("finalize_block", f"UnsupportedRules: {UnsupportedRules(7, 3, 4)}")
    with pytest.raises(ApplicationTooOld) as raised:
        _fail(node, node_log, f"{HandlerFailed.__module__}.{HandlerFailed.__name__}: {failure}")
    assert describe_failure(raised.value).splitlines() == [
        f"error: {tmp_path}: from block 7 on the chain follows rules 4, this software knows them up to 3",
        "next:  install the release that the proposal names and start again, nothing is lost",
    ]
    node_log.close()


def test_the_application_is_named_where_it_failed_and_not_cometbft(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    node: Any = _make(tmp_path)
    node._start_consensus = lambda: None
    node_log = NodeLog(tmp_path / "log")
    failure = HandlerFailed("finalize_block", "KeyError: 'bond'")
    _fail(node, node_log, f"{HandlerFailed.__module__}.{HandlerFailed.__name__}: {failure}")
    assert "abci failed: KeyError: 'bond', restart 1 of 5" in caplog.text
    node_log.close()


def test_consensus_is_restarted_at_growing_intervals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node: Any = _make(tmp_path)
    now = [1_000.0]
    starts: list[float] = []
    monkeypatch.setattr(supervisor, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def start() -> None:
        starts.append(now[0])
        node._app = SimpleNamespace(name="abci", exit_code=1, stop=lambda: None, read_tail=lambda *_: "it ended")

    def drive() -> None:
        while now[0] < 2_000.0:
            node._restart_what_ended()
            now[0] += 0.05

    node._start_consensus = start
    start()
    with pytest.raises(ChildFailed):
        drive()
    gaps = [later - earlier for earlier, later in pairwise(starts)]
    assert len(starts) == 1 + supervisor.MAX_RESTARTS
    assert gaps == pytest.approx([0.0, 0.5, 1.0, 2.0, 4.0], abs=0.15)


def test_a_core_that_halted_and_runs_on_is_restarted_once_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As CometBFT does on a full disk: it says so, stands still, and answers as if nothing were wrong."""
    node: Any = _make(tmp_path)
    free = [0]
    now = [1_000.0]
    monkeypatch.setattr(supervisor, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(supervisor, "shutil", SimpleNamespace(disk_usage=lambda path: SimpleNamespace(free=free[0])))
    starts: list[float] = []
    node._start_consensus = lambda: starts.append(now[0])
    said = 'E[...] CONSENSUS FAILURE!!! module=consensus err="no space left on device"'
    node_log = NodeLog(tmp_path / "log")
    child = node._core = Child(
        "cometbft",
        [sys.executable, "-c", f"print({said!r}, flush=True); import time; time.sleep(60)"],
        node_log,
    )
    deadline = time.monotonic() + 20
    while not child.has_halted and time.monotonic() < deadline:
        time.sleep(0.02)  # until its first line is here
    for _ in range(100):
        node._restart_what_ended()
        now[0] += 1.0
    assert child.exit_code is not None, "it was stopped"
    assert starts == [], "no start while there is no room"
    assert "no space left on device" in caplog.text
    assert "0 MiB of disk are free" in caplog.text
    free[0] = 1 << 30
    for _ in range(10):
        node._restart_what_ended()
        now[0] += 1.0
    assert len(starts) == 1
    node_log.close()


def test_one_node_a_home(tmp_path: Path) -> None:
    with hold_home(tmp_path):
        assert find_supervisor(tmp_path) == os.getpid()
        with pytest.raises(NodeRuns, match=f"runs .process {os.getpid()}.; next: stop it first"), hold_home(tmp_path):
            pass
    assert find_supervisor(tmp_path) is None


def test_home_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file where the folder should be")
    with pytest.raises(HomeNotWritable, match=r"logs/node.log can't be written: .*; next: give the directory"):
        Supervisor(NodePlan(home=tmp_path, cometbft=tmp_path, rpc_host="127.0.0.1", rpc_port=0)).run(print)
    (tmp_path / "node.lock").mkdir()
    with pytest.raises(HomeNotWritable, match=r"node.lock can't be written"), hold_home(tmp_path):
        pass


def test_output_of_a_child_is_in_the_log_and_in_its_tail(tmp_path: Path) -> None:
    node_log = NodeLog(tmp_path / "logs" / "node.log")
    program = "import sys; print('out'); print('err', file=sys.stderr); print('h\u00e9', 'x' * 100_000); sys.exit(3)"
    child = Child("abci", [sys.executable, "-X", "utf8", "-c", program], node_log)
    deadline = time.monotonic() + 20
    while child.exit_code is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert child.exit_code == 3
    assert {"out", "err", "hé " + "x" * 100_000} == set(child.read_tail().splitlines())
    node_log.write("node", "after it")
    node_log.close()
    lines = (tmp_path / "logs" / "node.log").read_text().splitlines()
    assert sorted(lines[:2]) == ["abci     | err", "abci     | out"] or "abci     | out" in lines
    assert lines[-1] == "node     | after it"


def test_log_is_rotated_and_the_oldest_go(tmp_path: Path) -> None:
    node_log = NodeLog(tmp_path / "node.log", max_bytes=1_000, num_kept=2)
    for index in range(100):
        node_log.write("cometbft", f"line {index:03d} " + "x" * 20)
    node_log.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["node.log", "node.log.1", "node.log.2"]
    assert all(path.stat().st_size <= 1_000 for path in tmp_path.iterdir())
    kept = "".join((tmp_path / name).read_text() for name in ("node.log.2", "node.log.1", "node.log"))
    numbers = [int(line.split()[3]) for line in kept.splitlines()]
    assert numbers == list(range(numbers[0], 100))


def test_full_disk_drops_lines_and_says_how_many(tmp_path: Path) -> None:
    node_log: Any = NodeLog(tmp_path / "node.log")
    node_log.write("rpc", "before")
    whole = node_log._file
    with open("/dev/full", "ab", buffering=0) as full:
        node_log._file = full
        for _ in range(3):
            node_log.write("rpc", "lost")
    node_log._file = whole
    node_log.write("rpc", "after")
    node_log.close()
    assert (tmp_path / "node.log").read_text().splitlines() == [
        "rpc      | before",
        "node     | 3 lines could not be written",
        "rpc      | after",
    ]
