"""A stop before a worker has joined: at once while it loads, in order after that, and nothing is paid (case 1)."""

from __future__ import annotations

import itertools
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from contracts.bindings.keys import create_key
from contracts.bindings.readers import TrainingReader
from training.worker.loop import LoopEnd
from training.worker.session import describe_stop

NOWHERE = "http://127.0.0.1:1"
"""Nothing listens on port 1."""

WAIT_SECONDS = 60.0


def start_join(folder: Path, **options: Any) -> subprocess.Popen[str]:
    key = folder / "worker.key"
    create_key(key)
    program = "from training.cli import main; main()"
    arguments = ["join", "--run", "7", "--chain", NOWHERE, "--key-file", str(key), "--home", str(folder / "home")]
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        **options,
    )


def join_and_stop(net: Any, number: int) -> tuple[Any, bool]:
    """Return a fresh worker that was told to stop at its question of that number, and whether it had joined by then."""
    worker = net.worker(f"worker {number}")
    read, asked, was_joined = worker.ports._read, itertools.count(1), []

    def reading(*question: Any) -> Any:
        answer = read(*question)
        if next(asked) == number:
            was_joined.append(any(name == worker.name for name, _, _ in net.chain.sends))
            worker.stop.set()
        return answer

    worker.ports.training = TrainingReader(reading)
    worker.start().join()
    assert worker.error is None, worker.error
    assert worker.summary.end is LoopEnd.STOPPED
    return worker, was_joined[0]


def test_a_stop_at_any_question_before_it_has_joined_costs_nothing(net: Any) -> None:
    """It joined and bonded after it had said that it stops."""
    net.create_run(minMembers=1, numRounds=40, roundBlocks=400)
    for number in itertools.count(1):
        worker, was_joined = join_and_stop(net, number)
        if was_joined:
            break
        assert [each for each in net.chain.sends if each[0] == worker.name] == []
        assert worker.summary.is_member is False
        assert "nothing was joined, nothing was paid" in describe_stop(worker.summary)
    assert number > 3, "the run, and the member, are asked for before"
    assert worker.summary.is_member
    assert "the membership is kept" in describe_stop(worker.summary)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_while_torch_loads_ends_at_once(tmp_path: Path, number: int) -> None:
    """A slow disk under torch, so that it loads when the signal comes; the first line comes before."""
    (tmp_path / "torch.py").write_text("import time\ntime.sleep(600)\n")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    joining = start_join(tmp_path, env={**os.environ, "PYTHONPATH": path})
    assert joining.stderr is not None
    try:
        first = joining.stderr.readline()
        assert f"trainer join: run 7 at {NOWHERE}; loading torch ..." in first
        joining.send_signal(number)
        assert joining.wait(WAIT_SECONDS) == 0
        assert (
            joining.stderr.read()
            == "stopped while loading: nothing was joined, nothing was paid, nothing has changed\n"
        )
    finally:
        joining.kill()
        joining.stderr.close()
    assert not (tmp_path / "home").exists()


def test_torch_without_room_in_memory_is_one_line_with_a_next_step(tmp_path: Path) -> None:
    """It was a traceback: the loader says of a library that can't be mapped that it can't be imported."""
    limit = 600 << 20
    joining = start_join(tmp_path, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))
    _, said = joining.communicate(timeout=WAIT_SECONDS)
    assert joining.returncode == 2, said
    assert "Traceback" not in said
    *_, error, step = said.splitlines()
    assert error.startswith("error: a package can't be loaded: ")
    assert step.startswith("next:  give the process more memory")
