"""A thread that makes passes: at once when woken, otherwise after the pause that the pass before asked for.

Its failure is kept and raised in whoever asks next, so that nothing is lost in a background thread.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod

LOG = logging.getLogger("trainer")


class WakingThread(ABC):
    """The life of one background thread of a worker."""

    def __init__(self, name: str) -> None:
        """Name the thread; ``start`` begins."""
        self._name = name
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._follow, name=name, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def wake(self) -> None:
        """Make the next pass now: there is something new."""
        self._wake.set()

    def stop(self, deadline_seconds: float) -> None:
        """Stop and wait for the thread, at most ``deadline_seconds``."""
        self._stop.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(deadline_seconds)

    def check(self) -> None:
        """Raise what ended the thread, if anything did."""
        if self._failure is not None:
            raise self._failure

    @abstractmethod
    def _pass(self) -> float | None:
        """Make one pass; return the seconds until the next one, None to sleep until woken."""

    def _follow(self) -> None:
        try:
            while not self._stop.is_set():
                self._wake.wait(self._pass())
                self._wake.clear()
        except BaseException as error:  # the outermost loop of this thread: handed to whoever asks next
            LOG.exception("the %s has failed", self._name)
            self._failure = error
