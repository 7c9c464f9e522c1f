"""What strangers' connections may take: how many there are, and how much is held for those that don't write or read.

Above the limit, a newcomer takes the place of a connection that waits for its client: one that is idle, or has begun a
request and not ended it; of those of the peer with most of them, the one that has waited longest.  So whoever opens
connections and says nothing keeps nobody out.  Where every connection is being answered, or is a WebSocket, the
newcomer gets 503.  Bytes of bodies that are not whole yet, and
of answers that clients have not taken yet, are counted over all connections; when they fill their room, new ones are
refused.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, cast

from aiohttp import web

from chain.rpc.peers import Room, get_peer

MAX_CONNECTIONS = 1_024
"""HTTP and WebSocket together: well below a process's usual limit of open files."""
MAX_UNSENT_BYTES = 256 << 20
"""Of all answers that wait for their readers."""
MAX_BODY_BYTES = 5 << 20
"""As go-ethereum: longest request body."""
MAX_UNREAD_BYTES = 128 << 20
"""Of all bodies that have come in part."""
SMALL_BODY_BYTES = 64 << 10
"""Always has room: nearly every request, and 64 MiB of all connections together."""
READ_SECONDS = 30.0
"""In which a request's body must have come."""
SEND_SECONDS = 60.0
"""In which an answer must have been taken: 25 MiB at 3.5 Mbit/s."""

_REFUSAL = b"%d connections are open already: try again, or close one\n" % MAX_CONNECTIONS


class Connections:
    """Which connections wait for their clients, and since when."""

    def __init__(self, limit: int = MAX_CONNECTIONS) -> None:
        """Let ``limit`` be open at once."""
        self._limit = limit
        self._waiting_since: dict[Any, float] = {}
        """By aiohttp's protocol object; one that is being answered isn't here, closed ones go at the next look."""

    def make_factory(self, server: web.Server) -> Callable[[], asyncio.Protocol]:
        """Return what makes the protocol of each new connection."""

        def make() -> asyncio.Protocol:
            if len(server.connections) >= self._limit and not self._cut_longest_waiting(server):
                return _Refusal()
            if len(self._waiting_since) > 2 * self._limit:
                self._forget_closed(server)
            made = server()
            self._waiting_since[made] = time.monotonic()
            return cast(asyncio.Protocol, made)

        return make

    @contextmanager
    def answering(self, request: web.BaseRequest) -> Iterator[None]:
        """Don't cut this connection off while the block runs; what waits for its client inside says so itself."""
        self._waiting_since.pop(request.protocol, None)
        try:
            yield
        finally:
            self._waiting_since[request.protocol] = time.monotonic()

    @contextmanager
    def waiting(self, request: web.BaseRequest) -> Iterator[None]:
        """Wait for the client of a connection while the block runs."""
        self._waiting_since[request.protocol] = time.monotonic()
        try:
            yield
        finally:
            self._waiting_since.pop(request.protocol, None)

    def _cut_longest_waiting(self, server: web.Server) -> bool:
        self._forget_closed(server)
        if not self._waiting_since:
            return False
        peers = {each: get_peer(each.transport) for each in self._waiting_since}
        num_waiting = Counter(peers.values())
        longest = min(self._waiting_since, key=lambda each: (-num_waiting[peers[each]], self._waiting_since[each]))
        del self._waiting_since[longest]
        if longest.transport is not None:
            longest.transport.abort()
        return True

    def _forget_closed(self, server: web.Server) -> None:
        still_open = set(server.connections)
        self._waiting_since = {each: since for each, since in self._waiting_since.items() if each in still_open}


class _Refusal(asyncio.Protocol):
    """Says no and closes."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Answer at once, whatever may come."""
        head = b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain\r\nConnection: close\r\n"
        sender = cast(asyncio.Transport, transport)
        sender.write(head + b"Content-Length: %d\r\n\r\n" % len(_REFUSAL) + _REFUSAL)
        sender.close()


@asynccontextmanager
async def open_listener(
    runner: web.AppRunner, connections: Connections, host: str, port: int
) -> AsyncIterator[tuple[str, int]]:
    """Listen with the limit; yields the address that was bound."""
    assert runner.server is not None, "set up before"
    factory = connections.make_factory(runner.server)
    listener = await asyncio.get_running_loop().create_server(factory, host, port, backlog=128)
    try:
        bound = listener.sockets[0].getsockname()
        yield bound[0], bound[1]
    finally:
        listener.close()


async def read_body(request: web.Request, unread: Room) -> bytes:
    """Read a request's body within its time and room; raises HTTPRequestTimeout, ...EntityTooLarge, ...Unavailable."""
    declared = request.content_length or 0
    peer = get_peer(request.transport)
    if declared > MAX_BODY_BYTES:
        raise web.HTTPRequestEntityTooLarge(max_size=MAX_BODY_BYTES, actual_size=declared)
    body = bytearray()
    counted = 0
    try:
        async with asyncio.timeout(READ_SECONDS):
            async for chunk in request.content.iter_any():
                body += chunk
                if len(body) > MAX_BODY_BYTES:
                    raise web.HTTPRequestEntityTooLarge(max_size=MAX_BODY_BYTES, actual_size=len(body))
                if len(body) > SMALL_BODY_BYTES:
                    if not unread.has_room(peer, len(body) - counted):
                        raise web.HTTPServiceUnavailable(text="too many long bodies are on their way: send it again")
                    unread.add(peer, len(body) - counted)
                    counted = len(body)
    except ConnectionError as error:
        raise web.HTTPBadRequest(text="the body was cut off") from error
    except TimeoutError as error:
        raise web.HTTPRequestTimeout(text=f"the body did not come within {READ_SECONDS:.0f} s") from error
    finally:
        unread.remove(peer, counted)
    return bytes(body)


async def send_answer(request: web.Request, body: bytes, headers: Mapping[str, str], unsent: Room) -> web.Response:
    """Send an answer while it counts as unsent; cut off whoever does not take it in time."""
    peer = get_peer(request.transport)
    if not unsent.has_room(peer, len(body)):
        raise web.HTTPServiceUnavailable(text="too many answers wait for their readers: ask again in a moment")
    response = web.Response(body=body, content_type="application/json", headers=headers)
    num_bytes = len(body)
    unsent.add(peer, num_bytes)
    try:
        async with asyncio.timeout(SEND_SECONDS):
            await response.prepare(request)
            await response.write_eof()
    except TimeoutError:
        if request.transport is not None:
            request.transport.abort()
    finally:
        unsent.remove(peer, num_bytes)
    return response
