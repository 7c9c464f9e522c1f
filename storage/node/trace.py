"""What a node did, in order, for people and tests: one JSON line an event (SPEC.md 5).

The order of one PUT is admitted, received, synced (hot), renamed, indexed, signed.  A test reads from it that
no signature came before the bytes were durable.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections import deque
from pathlib import Path
from typing import Protocol

log = logging.getLogger(__name__)

KEPT_EVENTS = 1_000
"""Events that a node keeps in memory for its status page."""


class Trace(Protocol):
    """Takes events; never fails a request."""

    def record(self, event: str, **fields: str | int) -> None:
        """Take one event."""


class MemoryTrace:
    """The last events, in memory."""

    def __init__(self, kept: int = KEPT_EVENTS) -> None:
        """Keep at most ``kept`` events."""
        self._events: deque[dict[str, str | int]] = deque(maxlen=kept)
        self._lock = threading.Lock()

    def record(self, event: str, **fields: str | int) -> None:
        """Take one event; its time is monotonic nanoseconds."""
        with self._lock:
            self._events.append({"event": event, "ns": time.monotonic_ns(), **fields})

    def get_events(self) -> list[dict[str, str | int]]:
        """Return the kept events, oldest first."""
        with self._lock:
            return list(self._events)


class FileTrace:
    """Appends JSON lines to a file; each line is complete when ``record`` returns, or lost where there is no room."""

    def __init__(self, path: Path) -> None:
        """Append to ``path``; raises ``OSError``."""
        self._lock = threading.Lock()
        # A pipe that nobody reads is refused, and one that is full loses lines: neither may hold the node up.
        try:
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK, 0o644)
        except OSError as error:
            text = f"can't be written to: {error.strerror}; next: name a file, or a pipe that somebody reads"
            raise type(error)(error.errno, text, str(path)) from error
        self._num_lost = 0

    def record(self, event: str, **fields: str | int) -> None:
        """Take one event; its time is monotonic nanoseconds."""
        line = json.dumps({"event": event, "ns": time.monotonic_ns(), **fields}).encode() + b"\n"
        with self._lock:
            try:
                # After a line that was cut, one of its own: a line is never glued to half of another.
                start = b"\n" if self._num_lost else b""
                if os.write(self._fd, start + line) == len(start + line):
                    self._num_lost = 0
                else:
                    self._num_lost += 1
            except OSError as error:  # what is traced must not fail with its trace
                if not self._num_lost:
                    log.warning("events are not traced for now: %s", error)
                self._num_lost += 1

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            os.close(self._fd)
