"""How many connections a node holds: who opens thousands and says nothing is closed first (SPEC.md 5).

The HTTP library waits for the first request of a connection for ever, and a process without descriptors can open no
shard. Invariant: a connection with a request under way is never closed from here.
"""

from __future__ import annotations

import asyncio
import logging
import resource
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

log = logging.getLogger(__name__)

MAX_CONNECTIONS = 1024
"""Over HTTP, open at once; beyond them those that are idle longest are closed."""

IDLE_SECONDS = 75.0
"""A connection without a request for so long is closed, its first request too."""

LOOK_SECONDS = 0.5
"""Between two looks: as many as can be opened in it is the most that are too many."""

WANTED_FILES = 16_384
"""Descriptors that the process asks for, as far as it may."""


class Connections:
    """The HTTP connections of one node; of one event loop."""

    def __init__(self, *, maximum: int = MAX_CONNECTIONS) -> None:
        """Close idle connections beyond ``maximum``, or half of the files that the process may open."""
        self._maximum = maximum
        self._busy: dict[RequestHandler, int] = {}
        self._idle_since: dict[RequestHandler, float] = {}
        self.num_closed = 0
        """Since the start."""

    @contextmanager
    def use(self, request: web.BaseRequest) -> Iterator[None]:
        """Note a request under way."""
        protocol = request.protocol
        self._busy[protocol] = self._busy.get(protocol, 0) + 1
        try:
            yield
        finally:
            self._busy[protocol] -= 1
            if not self._busy[protocol]:
                del self._busy[protocol]
            self._idle_since.pop(protocol, None)

    async def watch(self, list_open: Callable[[], Sequence[RequestHandler]]) -> None:
        """Close what is too much until cancelled."""
        while True:
            self.close_idle(list_open(), asyncio.get_running_loop().time())
            await asyncio.sleep(LOOK_SECONDS)

    def close_idle(self, connections: Sequence[RequestHandler], now: float) -> int:
        """Close what has been idle too long, and the longest idle of too many; return how many."""
        self._idle_since = {item: self._idle_since.get(item, now) for item in connections if item not in self._busy}
        oldest_first = sorted(self._idle_since, key=self._idle_since.__getitem__)
        maximum = min(self._maximum, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
        surplus = len(connections) - maximum
        closed = [
            item
            for number, item in enumerate(oldest_first)
            if number < surplus or now - self._idle_since[item] >= IDLE_SECONDS
        ]
        for item in closed:
            if item.transport is not None:
                item.transport.abort()
        self.num_closed += len(closed)
        if surplus > 0:
            log.info("%d idle connections closed: %d were open, %d may be", len(closed), len(connections), maximum)
        return len(closed)


def raise_file_limit() -> None:
    """Let the process open more files, as far as the system allows without asking anybody."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED_FILES if hard == resource.RLIM_INFINITY else min(hard, WANTED_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
