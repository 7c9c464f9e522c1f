"""Filters that clients poll: eth_newFilter, eth_newBlockFilter and what belongs to them.

A filter remembers the next block it has not told of, so a client that was away misses nothing as long as the
filter lives.  Filters that are not polled for a while are removed; their number is bounded.
"""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from chain.rpc.faults import FilterNotFound
from chain.rpc.logs import MAX_RANGE_BLOCKS, LogQuery, find_logs, find_logs_between
from chain.rpc.values import hex_data
from chain.rpc.views import view_log
from chain.store import Snapshot

LIFETIME_SECONDS = 300.0
"""As go-ethereum: five minutes after the last poll."""
MAX_FILTERS = 1_000
"""The one polled longest ago goes first."""
MAX_ITEMS = 100_000
"""Addresses and topics that all filters name together; as above."""


@dataclass(slots=True, kw_only=True)
class _Filter:
    query: LogQuery | None
    """None: block hashes."""
    next_height: int
    """First block not told yet."""
    used_at: float
    """Seconds of the registry's clock."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held by the poll that runs: each change is told once."""


class FilterRegistry:
    """The filters of all clients; threads may share it."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Measure lifetimes with ``clock`` (seconds)."""
        self._clock = clock
        self._lock = threading.Lock()
        self._filters: OrderedDict[str, _Filter] = OrderedDict()

    def __len__(self) -> int:
        """Return how many live."""
        return len(self._filters)

    def add(self, query: LogQuery | None, newest: int) -> str:
        """Make a filter that tells of what comes after ``newest``."""
        with self._lock:
            self._expire()
            filter_id = hex(secrets.randbits(120) | 1 << 120)
            self._filters[filter_id] = _Filter(query=query, next_height=newest + 1, used_at=self._clock())
            while len(self._filters) > MAX_FILTERS or (self._count_items() > MAX_ITEMS and len(self._filters) > 1):
                self._filters.popitem(last=False)
            return filter_id

    def remove(self, filter_id: str) -> bool:
        """Forget a filter; False where there was none."""
        with self._lock:
            return self._filters.pop(filter_id, None) is not None

    def _count_items(self) -> int:
        return sum(each.query.num_items for each in self._filters.values() if each.query is not None)

    def changes(self, snapshot: Snapshot, filter_id: str) -> list[Any]:
        """Return what came since the last poll: logs or block hashes, at most MAX_RANGE_BLOCKS blocks of it.

        The search holds this filter only, so polls of other filters go on meanwhile.
        """
        with self._lock:
            found = self._use(filter_id)
        with found.lock:
            start = found.next_height
            stop = min(snapshot.height, start + MAX_RANGE_BLOCKS - 1)
            query = found.query
            if query is None:
                blocks = (snapshot.block(height) for height in range(start, stop + 1))
                changes: list[Any] = [hex_data(block.hash) for block in blocks if block is not None]
            else:
                first = max(start, query.from_height or 0)
                last = stop if query.to_height is None else min(stop, query.to_height)
                changes = [view_log(log) for log in find_logs_between(snapshot, query, first, last)]
            found.next_height = max(start, stop + 1)
            return changes

    def logs(self, snapshot: Snapshot, filter_id: str) -> list[Any]:
        """Return all logs of a log filter's own span."""
        with self._lock:
            query = self._use(filter_id).query
        if query is None:
            raise FilterNotFound(filter_id)
        return [view_log(log) for log in find_logs(snapshot, query)]

    def _use(self, filter_id: str) -> _Filter:
        self._expire()
        found = self._filters.get(filter_id)
        if found is None:
            raise FilterNotFound(filter_id)
        found.used_at = self._clock()
        self._filters.move_to_end(filter_id)
        return found

    def _expire(self) -> None:
        oldest = self._clock() - LIFETIME_SECONDS
        while self._filters and next(iter(self._filters.values())).used_at < oldest:
            self._filters.popitem(last=False)
