"""What a node did, in order, for people and tests: one JSON line an event (SPEC.md 5).

The order of one PUT is admitted, received, synced (hot), renamed, indexed, signed.  A test reads from it that
no signature came before the bytes were durable.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from pathlib import Path
from typing import Protocol

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
    """Appends JSON lines to a file; each line is complete when ``record`` returns."""

    def __init__(self, path: Path) -> None:
        """Append to ``path``."""
        self._lock = threading.Lock()
        self._file = path.open("a", encoding="utf-8", buffering=1)

    def record(self, event: str, **fields: str | int) -> None:
        """Take one event; its time is monotonic nanoseconds."""
        line = json.dumps({"event": event, "ns": time.monotonic_ns(), **fields})
        with self._lock:
            self._file.write(line + "\n")

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._file.close()
