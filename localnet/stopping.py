"""Ctrl-C, made orderly: a signal sets a flag, and every wait looks at the flag.

Nothing is interrupted between starting a process and noting it, so nothing is ever forgotten.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from types import FrameType

from localnet.core.errors import NotReadyInTime, Stopped

POLL_SECONDS = 0.05
"""How often a condition is looked at."""


class StopRequest:
    """Whether a person, or a supervisor, has asked us to stop."""

    def __init__(self) -> None:
        """Nobody has asked yet."""
        self._event = threading.Event()
        self._what = ""
        self._seconds = 0.0
        self._end = float("inf")

    @property
    def is_set(self) -> bool:
        """True once somebody has asked."""
        return self._event.is_set()

    def set(self) -> None:
        """Ask to stop."""
        self._event.set()

    def set_deadline(self, what: str, seconds: float) -> None:
        """From now on every wait ends after ``seconds`` in all, with NotReadyInTime that names ``what``."""
        self._what, self._seconds, self._end = what, seconds, time.monotonic() + seconds

    def check(self) -> None:
        """Raise Stopped if somebody has asked, NotReadyInTime after the deadline of all waits."""
        self.pause(0)

    def pause(self, seconds: float) -> None:
        """Wait, at most ``seconds``; raise Stopped as soon as somebody asks, NotReadyInTime as in `check`."""
        if self._event.wait(seconds):
            raise Stopped
        if time.monotonic() >= self._end:
            raise NotReadyInTime(self._what, self._seconds)

    def wait_until(
        self,
        condition: Callable[[], bool],
        what: str,
        *,
        deadline_seconds: float,
        last: Callable[[], str] = lambda: "",
        poll_seconds: float = POLL_SECONDS,
    ) -> None:
        """Return once ``condition`` holds.

        Raises NotReadyInTime with ``what`` and ``last`` at the deadline, and Stopped when somebody asks.
        """
        end = time.monotonic() + deadline_seconds
        while not condition():
            if time.monotonic() >= end:
                raise NotReadyInTime(what, deadline_seconds, last())
            self.pause(poll_seconds)

    def listen(self) -> None:
        """From now on SIGINT, SIGTERM and SIGHUP ask to stop."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._event.set()
