"""The same line again and again, kept short: whoever is refused a thousand times a second does not fill the disk.

Each kind of line may come a few times in a while; what is left out is counted, and the count is said with the next one.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

LINES = 10
"""Of one kind, in one window."""

WINDOW_SECONDS = 60.0


class SparseLog:
    """Any thread may log."""

    def __init__(self, log: logging.Logger, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Write to ``log``."""
        self._log = log
        self._clock = clock
        self._lock = threading.Lock()
        self._kinds: dict[str, tuple[float, int]] = {}
        # When the window of a kind began, and how many lines came in it.

    def info(self, kind: str, message: str, *values: object) -> None:
        """Log a line, or count it; ``kind`` comes from a small set."""
        now = self._clock()
        with self._lock:
            began, count = self._kinds.get(kind, (now, 0))
            left_out = 0
            if now - began >= WINDOW_SECONDS:
                began, left_out, count = now, max(0, count - LINES), 0
            count += 1
            self._kinds[kind] = (began, count)
        if left_out:
            self._log.info("%d more of %s in the last while", left_out, kind)
        if count <= LINES:
            self._log.info(message, *values)
        if count == LINES:
            self._log.info("further lines of %s are counted for %d s, see the metrics", kind, WINDOW_SECONDS)
