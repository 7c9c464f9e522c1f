"""On a slow machine: limits that fit, a kill that shows something, a warning, and an end."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from localnet.core.errors import NotReadyInTime
from localnet.core.snapshot import Snapshot, WorkerRow
from localnet.demo.pace import EXPECTED_STEP_SECONDS, MOST_SLOWNESS, ROUND_SECONDS, Pace, TroubleSpotter
from localnet.demo.scenario import is_time_to_kill
from localnet.stopping import StopRequest


def make_pace(slowness: float) -> Pace:
    return Pace(step_seconds=slowness * EXPECTED_STEP_SECONDS, load=10.0, num_cores=2)


def make_snapshot(*workers: dict[str, Any], num_settled: int = 14) -> Snapshot:
    row = WorkerRow(
        name="A",
        address="0x" + "a" * 40,
        process="pid 1",
        is_alive=True,
        state="ACTIVE",
        activity="train 14",
        num_accepted=14,
        num_refused=0,
        num_tokens=1,
        earned=0,
        num_steps=1,
        bytes_sent=1,
        bytes_received=1,
    )
    return Snapshot(
        height=400,
        seconds=60.0,
        run_state="RUNNING",
        num_settled=num_settled,
        num_rounds_total=28,
        rounds=(),
        workers=tuple(replace(row, **changes) for changes in workers),
        losses=(),
        certified_version=8,
        paid_rewards=0,
        paid_storage=0,
        escrow=0,
        allreduce_bytes=0,
    )


def test_limits_stretch_with_the_machine_and_only_so_far() -> None:
    assert make_pace(0.5).round_seconds == ROUND_SECONDS
    assert make_pace(0.5).describe_slowness() is None
    assert make_pace(3.0).round_seconds == pytest.approx(3 * ROUND_SECONDS)
    assert make_pace(100.0).round_seconds == MOST_SLOWNESS * ROUND_SECONDS
    assert "load 10.0 on 2 cores" in str(make_pace(3.0).describe_slowness())


@pytest.mark.parametrize(
    ("second", "num_settled", "is_time"),
    [
        ({}, 14, True),
        ({}, 12, False),
        ({}, 21, False),
        ({"state": "DROPPED"}, 14, False),
        ({"state": "JOINED"}, 14, False),
        ({"num_missed": 1}, 14, False),
        ({"is_alive": False}, 14, False),
    ],
)
def test_a_worker_is_killed_only_while_both_work(second: dict[str, Any], num_settled: int, is_time: bool) -> None:
    assert is_time_to_kill(make_snapshot({}, {"name": "B", **second}, num_settled=num_settled)) is is_time


def test_late_and_dropped_workers_are_told_once_with_the_way_back() -> None:
    spotter = TroubleSpotter()
    dropped = make_snapshot({}, {"name": "B", "state": "DROPPED", "num_missed": 3, "rejoin_height": 460})
    lines = spotter.look(dropped)
    assert any("slower than the demo expects" in line for line in lines)
    assert any("rejoin from block 460 (now 400)" in line for line in lines)
    assert spotter.look(dropped) == []
    assert TroubleSpotter().look(make_snapshot({"num_missed": 1}), away="A") == []


def test_one_deadline_ends_every_wait() -> None:
    stop = StopRequest()
    stop.set_deadline("the whole demo", 0.05)
    began = time.monotonic()
    with pytest.raises(NotReadyInTime, match="the whole demo"):
        stop.wait_until(lambda: False, "a worker", deadline_seconds=60.0)
    assert time.monotonic() - began < 5.0


@pytest.mark.parametrize(("text", "words"), [(None, "no text at"), ("too short", "needs at least")])
def test_invalid_text_is_refused_before_anything_starts(tmp_path: Path, text: str | None, words: str) -> None:
    data, home = tmp_path / "book.txt", tmp_path / "demo"
    if text is not None:
        data.write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "localnet.demo", "--home", str(home), "--data", str(data)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert words in done.stderr
    assert "\nnext:  " in done.stderr
    assert not home.exists()
