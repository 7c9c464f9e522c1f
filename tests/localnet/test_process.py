"""Supervision: a child that ends is noticed, and nothing outlives a stop or the parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from localnet.core.errors import ChildExited
from localnet.process import ProcessId, get_own_id, is_alive, read_tail, start_child, stop_by_id
from localnet.supervisor import Stage, Supervisor

DEADLINE_SECONDS = 10.0
STUBBORN = "import signal,time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
PARENT_OF_ONE = (
    "import subprocess,sys,time\n"
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], process_group=0)\n"
    "print(child.pid, flush=True)\n"
    "time.sleep(60)\n"
)


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[Supervisor]:
    with Supervisor(logs=tmp_path) as supervisor:
        yield supervisor


def wait_until(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def wait_for_line(log: Path) -> str:
    assert wait_until(lambda: log.exists() and log.read_text().endswith("\n")), f"{log} stayed empty"
    return log.read_text().strip()


def test_child_that_fails_is_noticed_with_its_last_words(supervisor: Supervisor) -> None:
    child = supervisor.start(
        "worker", [sys.executable, "-c", "print('disk full'); raise SystemExit(3)"], stage=Stage.WORK
    )
    assert wait_until(lambda: child.exit_code is not None)
    with pytest.raises(ChildExited, match=r"worker ended with exit code 3[\s\S]*disk full") as caught:
        supervisor.check()
    assert caught.value.exit_code == 3


def test_child_that_is_killed_is_noticed(supervisor: Supervisor) -> None:
    child = supervisor.start("chain", [sys.executable, "-c", "import time; time.sleep(60)"], stage=Stage.CHAIN)
    supervisor.check()
    os.kill(child.id.pid, signal.SIGKILL)
    assert wait_until(lambda: child.exit_code is not None)
    with pytest.raises(ChildExited, match="chain was ended by signal 9"):
        supervisor.check()


def test_command_that_does_not_exist_is_noticed(supervisor: Supervisor) -> None:
    child = supervisor.start("nobody", ["no-such-command-here"], stage=Stage.CHAIN)
    assert wait_until(lambda: child.exit_code is not None)
    with pytest.raises(ChildExited, match="no-such-command-here"):
        supervisor.check()


def test_stop_ends_a_child_that_ignores_sigterm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("localnet.supervisor.STOP_SECONDS", 0.3)
    with Supervisor(logs=tmp_path) as supervisor:
        child = supervisor.start("stubborn", [sys.executable, "-c", STUBBORN], stage=Stage.CHAIN)
        wait_for_line(child.log)
    assert not is_alive(child.id)


def test_stop_ends_grandchildren_in_groups_of_their_own(tmp_path: Path) -> None:
    with Supervisor(logs=tmp_path) as supervisor:
        child = supervisor.start("parent", [sys.executable, "-c", PARENT_OF_ONE], stage=Stage.CHAIN)
        grandchild = int(wait_for_line(child.log))
        assert psutil.pid_exists(grandchild)
    assert wait_until(lambda: not psutil.pid_exists(grandchild))


def test_stop_goes_from_the_highest_stage_down(tmp_path: Path) -> None:
    order = tmp_path / "order"
    script = (
        "import signal,sys,time\n"
        "def end(*_):\n"
        "    open(sys.argv[1], 'a').write(sys.argv[2] + '\\n'); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, end); print('up', flush=True); time.sleep(60)\n"
    )
    with Supervisor(logs=tmp_path) as supervisor:
        for stage in (Stage.WORK, Stage.CHAIN, Stage.STORAGE):
            command = [sys.executable, "-c", script, str(order), stage.name]
            wait_for_line(supervisor.start(stage.name, command, stage=stage).log)
    assert order.read_text().split() == ["WORK", "STORAGE", "CHAIN"]


@pytest.mark.skipif(sys.platform != "linux", reason="the leash is Linux's PR_SET_PDEATHSIG")
def test_no_child_outlives_a_parent_that_is_killed(tmp_path: Path) -> None:
    script = (
        "import sys,time\n"
        "from pathlib import Path\n"
        "from localnet.supervisor import Stage, Supervisor\n"
        "supervisor = Supervisor(logs=Path(sys.argv[1]))\n"
        "command = [sys.executable, '-c', 'import time; time.sleep(60)']\n"
        "child = supervisor.start('sleeper', command, stage=Stage.CHAIN)\n"
        "print(child.id.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert parent.stdout is not None
        sleeper = int(parent.stdout.readline())
        assert psutil.pid_exists(sleeper)
    finally:
        parent.kill()
        parent.communicate(timeout=DEADLINE_SECONDS)
    assert wait_until(lambda: not psutil.pid_exists(sleeper)), "the child outlived its parent"


def test_pid_of_somebody_else_is_never_signalled() -> None:
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        real = ProcessId(pid=bystander.pid, started=psutil.Process(bystander.pid).create_time())
        impostor = ProcessId(pid=real.pid, started=real.started - 100)
        assert not stop_by_id(impostor, term_seconds=0.1)
        assert is_alive(real)
        assert stop_by_id(real, term_seconds=1)
    finally:
        bystander.kill()
        bystander.wait(DEADLINE_SECONDS)
    assert not is_alive(real)


def test_own_process_is_alive() -> None:
    assert is_alive(get_own_id())


def test_tail_of_a_log_is_its_last_lines(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("".join(f"line {i}\n" for i in range(10_000)))
    assert read_tail(log, 2) == "line 9998\nline 9999"
    assert "no log" in read_tail(tmp_path / "absent")


def test_a_child_that_ended_is_explained_by_its_own_lines(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("the devnet of last time is up\n")
    child = start_child("one", [sys.executable, "-c", "raise SystemExit('why it ended')"], log=log)
    child.wait(DEADLINE_SECONDS)
    with pytest.raises(ChildExited, match="why it ended") as caught:
        child.check()
    assert "last time" not in str(caught.value)
