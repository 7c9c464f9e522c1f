"""Ends what a test session has started when the session is gone, however it went.

pytest holds the only writing end of a pipe and puts a mark into its environment, which every process that it starts
inherits, also those in sessions of their own.  When the pipe closes (the end of pytest, kill -9 included) this
process ends whoever still carries the mark: SIGTERM first, so that supervisors stop their children in order, then
SIGKILL.  A clean session has nothing left to end.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import uuid
from pathlib import Path

import psutil

MARK = "ARCHIPELAGO_TEST_SESSION"
"""Environment variable; its value names one session."""
TERM_SECONDS = 8.0
"""For supervisors to stop their children."""


def start_keeper(term_seconds: float = TERM_SECONDS) -> int:
    """Start the keeper of this process and return the descriptor that must stay open as long as it lives."""
    mark = uuid.uuid4().hex
    reading, writing = os.pipe()
    subprocess.Popen(
        [sys.executable, str(Path(__file__)), mark, str(term_seconds)],
        stdin=reading,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    ).returncode = 0  # nobody waits for it: it outlives us on purpose
    os.close(reading)
    os.environ[MARK] = mark
    return writing


def find_marked(mark: str) -> list[psutil.Process]:
    """Return the live processes that carry a mark."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(MARK) == mark:
                found.append(process)
    return found


def main(mark: str, term_seconds: float) -> None:
    """Wait for the end of the session, then end what it left."""
    while sys.stdin.buffer.read(1):
        pass
    left = find_marked(mark)
    for process in left:
        with contextlib.suppress(psutil.Error):
            process.terminate()
    psutil.wait_procs(left, timeout=term_seconds)
    for process in find_marked(mark):
        with contextlib.suppress(psutil.Error):
            process.kill()


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
