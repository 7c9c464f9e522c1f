"""So many at once, and no address all of them."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from storage.core.errors import StoreBusy

PEER_SHARE_PERCENT = 75
"""Of the slots, for one address."""


class Slots:
    """Counts what is under way; any thread may take a slot."""

    def __init__(self, what: str, maximum: int) -> None:
        """Allow ``maximum`` of ``what`` at once."""
        self._what = what
        self._maximum = maximum
        self._lock = threading.Lock()
        self._taken = 0
        self._taken_by: Counter[str] = Counter()

    @contextmanager
    def take(self, peer: str) -> Iterator[None]:
        """Hold one slot for an address.

        Raises: StoreBusy.
        """
        most = -(-self._maximum * PEER_SHARE_PERCENT // 100)
        with self._lock:
            if self._taken >= self._maximum:
                raise StoreBusy(what=self._what, got=self._taken + 1, maximum=self._maximum)
            if self._taken_by[peer] >= most:
                raise StoreBusy(what=f"{self._what} from {peer}", got=self._taken_by[peer] + 1, maximum=most)
            self._taken += 1
            self._taken_by[peer] += 1
        try:
            yield
        finally:
            with self._lock:
                self._taken -= 1
                self._taken_by[peer] -= 1
                if not self._taken_by[peer]:
                    del self._taken_by[peer]
