"""One log of a node: what its supervisor, CometBFT, the application and JSON-RPC say, in order of arrival.

Each line begins with who said it.  The file is rotated by size, so that a node never fills its own disk; on a full
disk lines are dropped and counted, because a child whose output nobody takes would stop.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import IO

from contracts.bindings.foreign_text import ForeignTextFormatter

MAX_BYTES = 16 << 20
"""Of one file: some days of a validator at level info."""
NUM_KEPT = 4
"""Older files: node.log.1 is the newest of them."""
NAME_WIDTH = 8
"""Of the longest name, cometbft."""
OWN_NAME = "node"
"""The supervisor itself."""


class NodeLog:
    """Appends lines; threads may share it."""

    def __init__(self, path: Path, *, max_bytes: int = MAX_BYTES, num_kept: int = NUM_KEPT) -> None:
        """Open ``path`` for appending."""
        self.path = path
        self._max_bytes = max_bytes
        self._num_kept = num_kept
        self._lock = threading.Lock()
        self._num_dropped = 0
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: IO[bytes] = path.open("ab", buffering=0)
        self._size_bytes = path.stat().st_size

    def write(self, name: str, line: str) -> None:
        """Add one line of ``name``; never raises for a full disk."""
        data = f"{name:<{NAME_WIDTH}} | {line}\n".encode(errors="replace")
        with self._lock:
            if self._file.closed:
                return
            try:
                if self._size_bytes + len(data) > self._max_bytes:
                    self._rotate()
                if self._num_dropped:
                    self._append(
                        f"{OWN_NAME:<{NAME_WIDTH}} | {self._num_dropped} lines could not be written\n".encode()
                    )
                    self._num_dropped = 0
                self._append(data)
            except OSError:
                self._num_dropped += 1

    def close(self) -> None:
        """Take no more."""
        with self._lock:
            self._file.close()

    def _append(self, data: bytes) -> None:
        self._size_bytes += self._file.write(data) or 0

    def _rotate(self) -> None:
        self._file.close()
        for index in range(self._num_kept, 0, -1):
            older = self._name(index - 1)
            if older.exists():
                older.replace(self._name(index))
        self._file = self.path.open("ab", buffering=0)
        self._size_bytes = 0

    def _name(self, index: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{index}") if index else self.path


class NodeLogHandler(logging.Handler):
    """Puts the supervisor's own records into the log."""

    def __init__(self, node_log: NodeLog) -> None:
        """Write to ``node_log``."""
        super().__init__()
        self.setFormatter(ForeignTextFormatter("%(asctime)s %(levelname)s %(message)s"))
        self._node_log = node_log

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record."""
        self._node_log.write(OWN_NAME, self.format(record))
