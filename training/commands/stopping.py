"""How a person stops ``trainer join``: at once while it loads, in order once it works (case 1)."""

from __future__ import annotations

import logging
import os
import signal
import threading
from types import FrameType

from training.worker.errors import EXIT_OK

HARD_STOP_EXIT = 130
"""Exit code after a second Ctrl-C, as shells have it."""

STOPPED_LOADING = b"stopped while loading: nothing was joined, nothing was paid, nothing has changed\n"


class StopSignals:
    """SIGINT and SIGTERM from now on; the main thread's."""

    def __init__(self) -> None:
        """End at the first one, until ``begin``: the packages take seconds to load and nothing is open yet."""
        self.stop = threading.Event()
        """Set by the first one after ``begin``; a second one ends the process at once (the journal is safe)."""
        self._is_loading = True
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._hear)

    def begin(self) -> None:
        """Stop in order from now on."""
        self._is_loading = False

    def _hear(self, _number: int, _frame: FrameType | None) -> None:
        if self._is_loading:
            # An exception here could be swallowed by whatever is being imported.
            os.write(2, STOPPED_LOADING)
            os._exit(EXIT_OK)
        if self.stop.is_set():
            raise SystemExit(HARD_STOP_EXIT)
        self.stop.set()
        logging.getLogger("trainer").info("stopping in order; a second signal ends at once")
