"""Whatever a test session starts ends with it, also when it is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.integration

TESTS = Path(__file__).parents[1]
DEADLINE_SECONDS = 30.0
SLEEPER = "import signal, time; {ignore}print('up', flush=True); time.sleep(600)"
SESSION = """
import subprocess, sys, time
sys.path.insert(0, sys.argv[1])
from keeper import start_keeper
held = start_keeper(term_seconds=1.0)
for program in sys.argv[2:]:
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, start_new_session=True)
    child.stdout.readline()
    print(child.pid, flush=True)
print("all", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_what_a_session_started_ends_with_it(number: signal.Signals) -> None:
    programs = [SLEEPER.format(ignore=""), SLEEPER.format(ignore="signal.signal(signal.SIGTERM, signal.SIG_IGN); ")]
    command = [sys.executable, "-c", SESSION, str(TESTS), *programs]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as session:
        assert session.stdout is not None
        started = [psutil.Process(int(line)) for line in iter(session.stdout.readline, "all\n")]
        assert len(started) == len(programs)
        session.send_signal(number)
        _, alive = psutil.wait_procs(started, timeout=DEADLINE_SECONDS)
    assert alive == []


def test_this_session_has_a_keeper() -> None:
    mark = os.environ["ARCHIPELAGO_TEST_SESSION"]
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not any(mark in " ".join(each.info["cmdline"] or ()) for each in psutil.process_iter(["cmdline"])):
        assert time.monotonic() < deadline
        time.sleep(0.05)
