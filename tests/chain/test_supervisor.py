"""What the supervisor does with children that end again and again."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from chain import supervisor
from chain.supervisor import ChildFailed, NodePlan, Pause, Supervisor


def _make(tmp_path: Path) -> Supervisor:
    return Supervisor(NodePlan(home=tmp_path, cometbft=tmp_path, rpc_host="127.0.0.1", rpc_port=1))


def test_rpc_that_dies_for_ever_never_ends_the_validator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node: Any = _make(tmp_path)
    now = [1_000.0]
    starts: list[float] = []
    monkeypatch.setattr(supervisor, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def start() -> None:
        starts.append(now[0])
        node._rpc = SimpleNamespace(name="rpc", exit_code=-11, log_path=tmp_path / "rpc.log")

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
    dead = SimpleNamespace(name="abci", exit_code=1, log_path=tmp_path / "abci.log")
    for _ in range(supervisor.MAX_RESTARTS):
        node._count_restart(dead)
    with pytest.raises(ChildFailed, match="after 5 restarts"):
        node._count_restart(dead)
