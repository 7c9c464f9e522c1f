"""Whether a second process would help: the application is busy, and there is a processor for another one."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

WINDOW_SECONDS = 0.2
"""Between two judgements; the first one that finds much to do comes as soon as that is known."""
BUSY_PER_SECOND = 250
"""Transactions: below that the application alone is a twentieth busy with commits, a hundredth with transfers."""
MAX_WAITING_SHARE = 0.65
"""Of the time in which this thread could run, that it waits for a processor, over some windows.  Measured on two cores:
about a half with one validator and its load, 0.7 to 0.9 with four, where another process only takes from the other
validators: a transfer then costs a fifth more of all their time."""

_SCHEDSTAT = Path("/proc/self/schedstat")
"""Linux: nanoseconds on a processor, nanoseconds waiting for one, of the main thread."""


class Busyness:
    """Judges anew in each window, by the one before."""

    __slots__ = (
        "_clock",
        "_num_processors",
        "_number",
        "_read_times",
        "_start",
        "_times",
        "_waiting_share",
        "is_worthwhile",
    )

    def __init__(
        self,
        *,
        num_processors: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        read_times: Callable[[], tuple[int, int]] | None = None,
    ) -> None:
        """Count for a process that may use ``num_processors``, by default as many as the system lets it."""
        self._num_processors = num_processors or _count_processors()
        self._clock = clock
        self._read_times = read_times or read_times_of_main_thread
        self._start = clock()
        self._number = 0
        self._times = self._read_times()
        self._waiting_share = 0.0
        self.is_worthwhile = False

    def note(self, number: int) -> None:
        """Count transactions that have come."""
        self._number += number
        now = self._clock()
        seconds = max(now - self._start, WINDOW_SECONDS)
        is_first = not self.is_worthwhile and self._number > BUSY_PER_SECOND * WINDOW_SECONDS
        if now - self._start < WINDOW_SECONDS and not is_first:
            return
        running, waiting = self._read_times()
        ran, waited = running - self._times[0], waiting - self._times[1]
        if ran + waited > 0:
            self._waiting_share = (self._waiting_share + waited / (ran + waited)) / 2
        is_busy = self._number > BUSY_PER_SECOND * seconds
        self.is_worthwhile = is_busy and self._waiting_share <= MAX_WAITING_SHARE and self._num_processors > 1
        self._start, self._number, self._times = now, 0, (running, waiting)


def read_times_of_main_thread() -> tuple[int, int]:
    """Return nanoseconds on a processor and waiting for one; zeros where the system doesn't say."""
    try:
        running, waiting, _ = _SCHEDSTAT.read_text().split()
    except (OSError, ValueError):
        return 0, 0
    return int(running), int(waiting)


def _count_processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
