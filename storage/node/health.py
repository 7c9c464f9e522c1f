"""What the node has noticed of its own disk failing, for people and for metrics."""

from __future__ import annotations

import threading
import time

from storage.core.errors import DiskFailed
from storage.node.room import MEDIUM_ERRORS


class DiskHealth:
    """Counts failures of the medium; any thread may note one."""

    def __init__(self) -> None:
        """Nothing has failed yet."""
        self._lock = threading.Lock()
        self.num_failures = 0
        """Since the start."""
        self.last_failure = ""
        """In words; empty: none since the start."""
        self._failed_at = 0.0

    def note(self, error: BaseException) -> None:
        """Remember ``error`` if it is the medium's."""
        if not isinstance(error, DiskFailed) and getattr(error, "errno", None) not in MEDIUM_ERRORS:
            return
        reason = error.reason if isinstance(error, DiskFailed) else str(error)
        with self._lock:
            self.num_failures += 1
            self.last_failure = reason
            self._failed_at = time.monotonic()

    def get_status(self) -> dict[str, int | str | None]:
        """Return it for the status."""
        with self._lock:
            age = int(time.monotonic() - self._failed_at) if self.num_failures else None
            return {"failures": self.num_failures, "last_failure": self.last_failure or None, "last_seconds_ago": age}
