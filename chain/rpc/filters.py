"""Filters that clients poll: eth_newFilter, eth_newBlockFilter and what belongs to them.

A filter remembers the next block it has not told of, so a client that was away misses nothing as long as the
filter lives.  Filters that are not polled for a while are removed; their number is bounded, and a new one takes the
place of one of the peer that has most.
"""

from __future__ import annotations

import secrets
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from chain.rpc.faults import FilterNotFound
from chain.rpc.logs import MAX_RANGE_BLOCKS, LogQuery, find_logs, find_logs_between
from chain.rpc.peers import Peer
from chain.rpc.values import hex_data
from chain.rpc.views import view_log
from chain.store import Snapshot

LIFETIME_SECONDS = 300.0
"""As go-ethereum: five minutes after the last poll."""
MAX_FILTERS = 1_000
"""Of the peer with most of them, the one polled longest ago goes first."""
MAX_ITEMS = 100_000
"""Addresses and topics that all filters name together; as above."""


@dataclass(slots=True, kw_only=True)
class _Filter:
    query: LogQuery | None
    """None: block hashes."""
    next_height: int
    """First block not told yet."""
    peer: Peer
    """Who made it."""
    used_at: float
    """Seconds of the registry's clock."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held by the poll that runs: each change is told once."""

    @property
    def num_items(self) -> int:
        """Return how many addresses and topics it names."""
        return 0 if self.query is None else self.query.num_items


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

    def add(self, query: LogQuery | None, newest: int, peer: Peer) -> str:
        """Make a filter that tells of what comes after ``newest``."""
        with self._lock:
            self._expire()
            filter_id = hex(secrets.randbits(120) | 1 << 120)
            self._filters[filter_id] = _Filter(query=query, next_height=newest + 1, peer=peer, used_at=self._clock())
            while len(self._filters) > MAX_FILTERS:
                self._drop_one(Counter(each.peer for each in self._filters.values()))
            while len(self._filters) > 1 and (num_items := self._count_items()).total() > MAX_ITEMS:
                self._drop_one(num_items)
            return filter_id

    def remove(self, filter_id: str) -> bool:
        """Forget a filter; False where there was none."""
        with self._lock:
            return self._filters.pop(filter_id, None) is not None

    def _count_items(self) -> Counter[Peer]:
        num_items: Counter[Peer] = Counter()
        for each in self._filters.values():
            num_items[each.peer] += each.num_items
        return num_items

    def _drop_one(self, held: Counter[Peer]) -> None:
        """Forget a filter of the peer that holds most: the one polled longest ago."""
        ((greediest, _),) = held.most_common(1)
        theirs = [filter_id for filter_id, each in self._filters.items() if each.peer == greediest]
        del self._filters[theirs[0]]

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
