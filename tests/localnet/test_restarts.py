"""When a store is started again, and how a devnet is called that is not up."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from localnet.cli import describe_phase
from localnet.core.config import DevnetConfig
from localnet.core.errors import NotReadyInTime
from localnet.core.restarts import FIRST_DELAY_SECONDS, MAX_RESTARTS, WINDOW_SECONDS, Restarts
from localnet.devnet import Devnet
from localnet.process import ProcessId, get_own_id
from localnet.record import DevnetRecord, Phase, load_record
from localnet.stopping import StopRequest
from localnet.supervisor import Stage, Supervisor


def test_each_start_waits_longer_and_at_last_there_is_none() -> None:
    restarts, now, delays = Restarts(), 1_000.0, []
    for _ in range(MAX_RESTARTS):
        restarts = restarts.note_end(now)
        at = restarts.compute_start()
        assert at is not None
        delays.append(at - now)
        now = at + 5
    assert delays == [FIRST_DELAY_SECONDS * 2**number for number in range(MAX_RESTARTS)]
    restarts = restarts.note_end(now)
    assert restarts.compute_start() is None


def test_ends_of_long_ago_do_not_count() -> None:
    restarts = Restarts()
    for number in range(3 * MAX_RESTARTS):
        restarts = restarts.note_end(number * WINDOW_SECONDS)
        assert restarts.compute_start() == number * WINDOW_SECONDS + FIRST_DELAY_SECONDS
    assert len(restarts.ended_at) == 1


def test_nothing_is_started_that_has_not_ended() -> None:
    assert Restarts().compute_start() is None


@pytest.mark.parametrize(
    ("phase", "is_alive", "words"),
    [
        (Phase.READY, True, "ready"),
        (Phase.READY, False, "dead"),
        (Phase.STARTING, False, "dead"),
        (Phase.STOPPING, True, "stopping"),
        (Phase.STOPPING, False, "stopped"),
        (Phase.STOPPED, False, "stopped"),
        (Phase.FAILED, False, "failed"),
    ],
)
def test_a_devnet_that_was_stopped_in_order_is_not_dead(phase: Phase, is_alive: bool, words: str) -> None:
    """One whose end took too long, as after the demo on a busy machine, was stopped all the same."""
    empty: Any = ()
    record = DevnetRecord(
        home="/home",
        phase=phase,
        supervisor=get_own_id() if is_alive else ProcessId(pid=2**22 + 1, started=0.0),
        processes=empty,
        chain_id="",
        rpc_urls=empty,
        public_urls=empty,
        storage_urls=empty,
        faucet_key="",
    )
    assert describe_phase(record) == words


def test_a_store_that_can_not_be_started_now_is_planned_again_and_the_others_go_on(tmp_path: Path) -> None:
    """Its log's folder is gone, then the devnet's record can't be written: neither ends the devnet."""
    home = tmp_path / "home"
    (home / "operators").mkdir(parents=True)
    stop, said = StopRequest(), []

    def say(line: str) -> None:
        said.append(line)
        if "cannot be started" in line:
            logs.unlink()
            (home / "devnet.json").mkdir()
        elif "cannot be written" in line:
            (home / "devnet.json").rmdir()
            stop.set_deadline("the record to be written after all", 3)

    logs = home / "logs"
    with Supervisor(logs=logs) as supervisor:
        # With such a capacity the store that is started ends before it makes a home.
        config = DevnetConfig(home=home, host="127.0.0.1", rpc_port=1, num_storage=1, capacity="no size")
        devnet = Devnet(config, supervisor, stop, say)
        store = supervisor.start("storage-0", [sys.executable, "-c", ""], stage=Stage.STORAGE)
        devnet._storage, devnet._storage_ports = [store], [1]
        store.wait(10)
        logs.rename(home / "aside")
        logs.write_text("no folder")
        stop.set_deadline("both to be said", 20)
        with pytest.raises(NotReadyInTime):
            devnet.watch()
        assert [one.id for one in load_record(home).processes] == [devnet._storage[0].id]
    assert [line for line in said if "next: make room" in line] == [
        f"storage-0 cannot be started: {logs}: File exists; next: make room there, or give another --home",
        f"{home / 'devnet.json'} cannot be written: Is a directory; next: make room on that disk, or give another "
        "--home",
    ], said
    assert "started again in 2 s" in said[2]
    assert sorted(path.name for path in home.iterdir()) == ["aside", "devnet.json", "logs", "operators"]
