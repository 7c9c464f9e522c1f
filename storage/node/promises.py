"""Which shards were signed for a short while ago, so that their certificates may still be on the way (SPEC.md 4).

A blob whose lease was given back may be put again under the same id, for no longer than before. Until the new
certificate is on the chain nothing there says so: the store's own memory must.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

from da.core.types import BlobId, ShardIndex

Key = tuple[BlobId, ShardIndex]


class Promises:
    """Remembers promises for a while; any thread may call it."""

    def __init__(self, seconds: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Remember for ``seconds``; what a former process has signed is not known, so for as long all are recent."""
        self._seconds = seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._started = clock()
        self._older: set[Key] = set()
        self._newer: set[Key] = set()
        self._turned = self._started
        # Two sets of ``seconds`` each: a promise is remembered for one to two of them, and none has a time of its own.

    def note(self, keys: Iterable[Key]) -> None:
        """Remember that these were signed for, now."""
        if self._seconds <= 0:
            return
        with self._lock:
            self._turn()
            self._newer.update(keys)

    def is_recent(self, key: Key) -> bool:
        """Tell whether a shard may have been signed for a short while ago."""
        if self._seconds <= 0:
            return False
        with self._lock:
            self._turn()
            is_new_process = self._clock() - self._started < self._seconds
            return is_new_process or key in self._newer or key in self._older

    def _turn(self) -> None:
        passed = self._clock() - self._turned
        if passed >= self._seconds:
            self._older = self._newer if passed < 2 * self._seconds else set()
            self._newer = set()
            self._turned += passed
