"""Who is at the other end of a connection, and how much one of them gets of what all share.

A peer is an IPv4 address, or the first 64 bits of an IPv6 one, because whoever has one such address has them all.  Of
places and bytes that wait for their turn a peer gets three quarters, of threads all but one, so a stranger who takes
all it can leaves room and a thread to the others.  What can be taken back (``chain.rpc.subscriptions``,
``chain.rpc.filters``, ``chain.rpc.connections``) goes to newcomers from whoever has most.  The clients of a proxy are
one peer: it has to share among them.
"""

from __future__ import annotations

import asyncio
import ipaddress
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import NewType

from chain.rpc.faults import Busy

Peer = NewType("Peer", str)
"""An IPv4 address, or the /64 of an IPv6 one."""

UNKNOWN_PEER = Peer("")
"""Of a connection that is closed already, or that has no address."""
_IPV6_BITS = 64
_REMEMBERED_PEERS = 4_096


def get_peer(transport: asyncio.BaseTransport | None) -> Peer:
    """Return who is at the other end."""
    name = transport.get_extra_info("peername") if transport is not None else None
    return parse_peer(str(name[0])) if isinstance(name, tuple) and name else UNKNOWN_PEER


@lru_cache(_REMEMBERED_PEERS)
def parse_peer(host: str) -> Peer:
    """Return the peer that an address belongs to.

    ``parse_peer("2001:db8::1:2") == "2001:db8::/64"``, ``parse_peer("::ffff:192.0.2.1") == "192.0.2.1"``
    """
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return UNKNOWN_PEER
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is None:
            return Peer(str(ipaddress.ip_network((address, _IPV6_BITS), strict=False)))
        address = address.ipv4_mapped
    return Peer(str(address))


def compute_share(limit: int) -> int:
    """Return what one peer may have of ``limit``: three quarters."""
    return limit - limit // 4


class Room:
    """Bytes that are held for clients; threads may share it."""

    def __init__(self, limit: int) -> None:
        """Have room for ``limit``; a single one always fits into an empty room."""
        self._limit = limit
        self._share = compute_share(limit)
        self._by_peer: dict[Peer, int] = {}
        self._lock = threading.Lock()
        self.count = 0

    def has_room(self, peer: Peer, num_bytes: int) -> bool:
        """Say whether so many more may be held for a peer."""
        if self.count == 0:
            return True
        held = self._by_peer.get(peer, 0)
        return self.count + num_bytes <= self._limit and (held == 0 or held + num_bytes <= self._share)

    def add(self, peer: Peer, num_bytes: int) -> None:
        """Count what is held from now on; below zero: held no more, because it was taken, or given up."""
        with self._lock:
            self.count += num_bytes
            held = self._by_peer.get(peer, 0) + num_bytes
            if held:
                self._by_peer[peer] = held
            else:
                self._by_peer.pop(peer, None)

    def remove(self, peer: Peer, num_bytes: int) -> None:
        """Count it no more."""
        self.add(peer, -num_bytes)


class Places:
    """How many of all peers' questions may wait at once; touched by the event loop only."""

    def __init__(self, limit: int) -> None:
        """Have ``limit`` places."""
        self._limit = limit
        self._share = compute_share(limit)
        self._by_peer: dict[Peer, int] = {}
        self.count = 0

    def check(self, peer: Peer) -> None:
        """Raise Busy where there is no place for a peer."""
        if self.count >= self._limit:
            raise Busy(self._limit)
        if self._by_peer.get(peer, 0) >= self._share:
            raise Busy(self._share, "requests from your address")

    @contextmanager
    def taken(self, peer: Peer) -> Iterator[None]:
        """Hold a place while the block runs."""
        self.count += 1
        self._by_peer[peer] = self._by_peer.get(peer, 0) + 1
        try:
            yield
        finally:
            self.count -= 1
            self._by_peer[peer] -= 1
            if not self._by_peer[peer]:
                del self._by_peer[peer]


@dataclass(slots=True)
class _Turn:
    semaphore: asyncio.Semaphore
    num_users: int = 0


class Turns:
    """How many of one peer's questions run at once; what is beyond waits for that peer's own; event loop only."""

    def __init__(self, limit: int) -> None:
        """Let ``limit`` of each peer run."""
        self._limit = limit
        self._by_peer: dict[Peer, _Turn] = {}

    @asynccontextmanager
    async def of(self, peer: Peer) -> AsyncIterator[None]:
        """Wait for the peer's turn and hold it while the block runs."""
        turn = self._by_peer.setdefault(peer, _Turn(asyncio.Semaphore(self._limit)))
        turn.num_users += 1
        try:
            async with turn.semaphore:
                yield
        finally:
            turn.num_users -= 1
            if not turn.num_users:
                del self._by_peer[peer]
