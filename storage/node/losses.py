"""Shards that were found missing or damaged and wait for repair; and how many there were."""

from __future__ import annotations

import threading
from collections import Counter

from da.core.types import BlobId, ShardIndex


class Losses:
    """Thread-safe; a loss that is not repaired is found again by the next inventory, so memory is enough."""

    def __init__(self) -> None:
        """Start empty."""
        self._lock = threading.Lock()
        self._waiting: dict[tuple[BlobId, ShardIndex], str] = {}
        self._counts: Counter[str] = Counter()

    def add(self, blob: BlobId, shard: ShardIndex, reason: str) -> bool:
        """Note a loss, once until it is taken, and tell whether it is new; ``reason`` is one word for the metrics."""
        with self._lock:
            if (blob, shard) in self._waiting:
                return False
            self._waiting[blob, shard] = reason
            self._counts[reason] += 1
        return True

    def take_all(self) -> list[tuple[BlobId, ShardIndex]]:
        """Return what waits, oldest first, and forget it."""
        with self._lock:
            waiting, self._waiting = list(self._waiting), {}
        return waiting

    def has_some(self) -> bool:
        """Tell whether something waits."""
        with self._lock:
            return bool(self._waiting)

    def get_counts(self) -> dict[str, int]:
        """Return how many losses were noted, by reason."""
        with self._lock:
            return dict(self._counts)
