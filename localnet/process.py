"""One supervised process: started on a leash in a group of its own, stopped with everything it started.

Invariant: after `stop` neither the process nor any descendant lives.  Processes are named by (pid, start
time), so a pid that the kernel has given to somebody else is never signalled.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import psutil

from localnet.core.errors import CannotStart, ChildExited

LEASH = Path(__file__).with_name("leash.py")
"""The launcher that ties a process to its parent's life."""
TERM_SECONDS = 8.0
"""A process gets this long after SIGTERM; with the kill after it a stop stays under ten seconds."""
KILL_SECONDS = 2.0
"""The kernel ends a killed process within this."""
TAIL_LINES = 15
"""How much of a log is shown when its process fails."""
TAIL_BYTES = 64 * 1024
"""How far from a log's end its last lines are looked for."""
START_TIME_TOLERANCE_SECONDS = 0.02
"""psutil computes start times from clock ticks of 10 ms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessId:
    """A process, told apart from a later one with the same pid."""

    pid: int
    """Process id."""
    started: float
    """Start time, Unix seconds, as psutil gives it."""


class Child:
    """A process that we started, its log, and how to end it."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], log: Path, log_start: int = 0) -> None:
        """Take over a process that was just started; what stood in its log before ``log_start`` is of others."""
        self.name = name
        self.log = log
        self._log_start = log_start
        self._process = process
        self.id = ProcessId(pid=process.pid, started=_get_start_time(process.pid))

    @property
    def exit_code(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        return self._process.poll()

    def check(self) -> None:
        """Raise ChildExited if the process has ended."""
        code = self.exit_code
        if code is not None:
            raise ChildExited(self.name, code, str(self.log), self.read_tail())

    def read_tail(self, num_lines: int = TAIL_LINES) -> str:
        """Return the last lines that this process wrote into its log."""
        return read_tail(self.log, num_lines, start=self._log_start)

    def terminate(self) -> None:
        """Ask it to end."""
        if self.exit_code is None:
            self._process.terminate()

    def kill(self) -> None:
        """End it at once, as a power cut would: SIGKILL, no farewell."""
        if self.exit_code is None:
            self._process.kill()
            self._process.wait(KILL_SECONDS)

    def wait(self, seconds: float) -> int | None:
        """Wait for it to end by itself; None when it has not after ``seconds``."""
        try:
            return self._process.wait(max(seconds, 0.0))
        except subprocess.TimeoutExpired:
            return None


def stop_children(children: Sequence[Child], *, term_seconds: float = TERM_SECONDS) -> None:
    """SIGTERM to all at once, one deadline, then SIGKILL to whatever is left of them and their descendants."""
    end = time.monotonic() + term_seconds
    families = [member for child in children for member in get_family(child.id)]
    for child in children:
        child.terminate()
    for child in children:
        if child.wait(end - time.monotonic()) is None:
            child.kill()
    end_processes(families)


def start_child(
    name: str,
    command: Sequence[str],
    *,
    log: Path,
    environment: Mapping[str, str] | None = None,
    nice: int = 0,
    output: Path | None = None,
    is_leashed: bool = True,
) -> Child:
    """Start ``command`` in a process group of its own, what it says appended to ``log``.

    With ``output`` its standard output goes there alone.  On a leash it ends when this process does; without
    one, in a session of its own, it may be left running on purpose.

    Raises CannotStart.
    """
    polite = ["nice", "-n", str(nice)] if nice else []
    leash = [sys.executable, "-I", "-S", str(LEASH), str(os.getpid())] if is_leashed else []
    with ExitStack() as files:
        try:
            log.parent.mkdir(parents=True, exist_ok=True)
            sink = files.enter_context(log.open("ab"))
            log_start = sink.tell()
            standard_output = files.enter_context(output.open("wb")) if output else sink
        except OSError as error:
            where = str(error.filename or log)
            raise CannotStart(
                name, where, error.strerror or type(error).__name__, "make room there, or give another --home"
            ) from error
        try:
            process = subprocess.Popen(
                [*leash, *polite, *command],
                stdin=subprocess.DEVNULL,
                stdout=standard_output,
                stderr=sink,
                env=None if environment is None else dict(environment),
                process_group=0 if is_leashed else None,
                start_new_session=not is_leashed,
            )
        except OSError as error:
            raise CannotStart(name, str(command[0]), error.strerror or type(error).__name__) from error
    return Child(name, process, log, log_start)


def is_alive(process: ProcessId) -> bool:
    """Say whether this very process runs (a zombie does not)."""
    found = _find(process)
    return found is not None and found.status() != psutil.STATUS_ZOMBIE


def get_family(process: ProcessId) -> list[psutil.Process]:
    """List the descendants of a process, those that start others first."""
    found = _find(process)
    if found is None:
        return []
    try:
        return found.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def end_processes(processes: Sequence[psutil.Process], *, term_seconds: float = 0.5) -> None:
    """End each of these processes by its id: SIGTERM, a short deadline, SIGKILL."""
    living = [process for process in processes if process.is_running()]
    for process in living:
        _send(process, is_final=False)
    _, stubborn = psutil.wait_procs(living, timeout=term_seconds)
    for process in stubborn:
        _send(process, is_final=True)
    psutil.wait_procs(stubborn, timeout=KILL_SECONDS)


def stop_by_id(process: ProcessId, *, term_seconds: float) -> bool:
    """Stop a process that another program of ours started, and its descendants; False when it was gone."""
    found = _find(process)
    if found is None:
        return False
    family = get_family(process)
    end_processes([found], term_seconds=term_seconds)
    end_processes(family)
    return True


def get_own_id() -> ProcessId:
    """Name the calling process."""
    return ProcessId(pid=os.getpid(), started=_get_start_time(os.getpid()))


def read_tail(log: Path, num_lines: int = TAIL_LINES, *, start: int = 0) -> str:
    """Return the last lines of a log, from byte ``start`` on; a sentence when there is none."""
    try:
        with log.open("rb") as source:
            source.seek(0, os.SEEK_END)
            source.seek(max(start, source.tell() - TAIL_BYTES))
            text = source.read().decode("utf-8", "replace")
    except OSError as error:
        return f"(no log: {error.strerror})"
    lines = [line for line in text.splitlines() if line.strip()][-num_lines:]
    return "\n".join(lines) if lines else "(the log is empty)"


def _find(process: ProcessId) -> psutil.Process | None:
    try:
        found = psutil.Process(process.pid)
        is_same = abs(found.create_time() - process.started) <= START_TIME_TOLERANCE_SECONDS
    except psutil.NoSuchProcess:
        return None
    return found if is_same else None


def _get_start_time(pid: int) -> float:
    try:
        return psutil.Process(pid).create_time()
    except psutil.NoSuchProcess:
        return 0.0


def _send(process: psutil.Process, *, is_final: bool) -> None:
    try:
        if is_final:
            process.kill()
        else:
            process.terminate()
    except psutil.NoSuchProcess:
        return
