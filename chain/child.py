"""One child process of a node: on a leash, in a group of its own, its output taken line by line.

The group keeps a Ctrl-C for the supervisor, which stops the children in order; the leash (Linux) has the kernel kill
them when the supervisor is killed itself.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import IO

from chain.node_log import NodeLog

log = logging.getLogger(__name__)

STOP_SECONDS = 3.0
"""For one child to end after SIGTERM; three of them stay below ten seconds."""
NUM_TAIL_LINES = 200
"""That are remembered of each child."""
NUM_SHOWN_LINES = 15
"""Of them in an error."""
LAST_LINES_SECONDS = 1.0
"""For the last lines of an ended child: something that it started may hold its output open."""

HALTED = "CONSENSUS FAILURE!!!"
"""CometBFT says so when consensus has stopped for good, as on a full disk; its process goes on and answers."""

_PR_SET_PDEATHSIG = 1
"""prctl(2)."""


class ChildFailed(Exception):
    """A child process ended, or didn't get ready, and restarting it is of no use."""

    def __init__(self, name: str, reason: str, tail: str, next_step: str) -> None:
        """Keep the child's name and its last lines."""
        super().__init__(f"{name} {reason}; its last lines:\n{tail.replace('; next: ', ', next: ')}")
        self.name = name
        self.next_step = next_step


class Child:
    """One child process."""

    def __init__(self, name: str, command: Sequence[str], node_log: NodeLog) -> None:
        """Start it, its output going to ``node_log`` under its name."""
        self.name = name
        self._lines: deque[str] = deque(maxlen=NUM_TAIL_LINES)
        self.has_halted = False
        """It runs, and has said that it does its work no more."""
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            process_group=0,
            preexec_fn=_make_leash(os.getpid()),
        )
        assert self._process.stdout is not None
        self._reader = threading.Thread(
            target=self._take, args=(self._process.stdout, node_log), name=f"output of {name}", daemon=True
        )
        self._reader.start()
        log.info("started %s, process %d", name, self._process.pid)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def read_tail(self, num_lines: int = NUM_SHOWN_LINES) -> str:
        """Return its last lines; of an ended child all that it said."""
        if self.exit_code is not None:
            self._reader.join(LAST_LINES_SECONDS)
        return "\n".join(list(self._lines)[-num_lines:])

    def stop(self) -> None:
        """Ask it to end, and kill it when it doesn't."""
        if self.exit_code is None:
            self._process.terminate()
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                log.warning("%s didn't end within %.0f s, killing it", self.name, STOP_SECONDS)
                self._process.kill()
                self._process.wait()
        self._reader.join(LAST_LINES_SECONDS)

    def _take(self, output: IO[bytes], node_log: NodeLog) -> None:
        with output:
            for raw in output:
                line = raw.decode(errors="replace").rstrip("\r\n")
                self._lines.append(line)
                self.has_halted = self.has_halted or HALTED in line
                node_log.write(self.name, line)


def _make_leash(parent: int) -> Callable[[], None] | None:
    """Return what a child does before it runs: ask the kernel to die with its parent."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None, use_errno=True)

    def put_on() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return put_on
