"""What strangers' connections may take: how many there are, and how much waits for those that don't read.

A connection above the limit gets 503 and is closed before anything is read from it.  Bytes of answers that clients
have not taken yet are counted over all connections; when they fill their room, new answers are refused until slow
readers have read or were cut off.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import cast

from aiohttp import web

MAX_CONNECTIONS = 1_024
"""HTTP and WebSocket together: well below a process's usual limit of open files."""
MAX_UNSENT_BYTES = 256 << 20
"""Of all answers that wait for their readers."""
READ_SECONDS = 30.0
"""In which a request's body must have come."""
SEND_SECONDS = 60.0
"""In which an answer must have been taken: 25 MiB at 3.5 Mbit/s."""

_REFUSAL = b"%d connections are open already: try again, or close one\n" % MAX_CONNECTIONS


class UnsentBytes:
    """The bytes that wait; touched by the event loop only."""

    def __init__(self, limit: int = MAX_UNSENT_BYTES) -> None:
        """Have room for ``limit``; a single answer always fits into an empty room."""
        self._limit = limit
        self.count = 0

    def has_room(self, num_bytes: int) -> bool:
        """Say whether an answer may wait here."""
        return self.count == 0 or self.count + num_bytes <= self._limit

    def add(self, num_bytes: int) -> None:
        """Count what waits from now on."""
        self.count += num_bytes

    def remove(self, num_bytes: int) -> None:
        """Count it no more: taken, or given up."""
        self.count -= num_bytes


class _Refusal(asyncio.Protocol):
    """Says no and closes."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Answer at once, whatever may come."""
        head = b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain\r\nConnection: close\r\n"
        sender = cast(asyncio.Transport, transport)
        sender.write(head + b"Content-Length: %d\r\n\r\n" % len(_REFUSAL) + _REFUSAL)
        sender.close()


def make_factory(server: web.Server, limit: int = MAX_CONNECTIONS) -> Callable[[], asyncio.Protocol]:
    """Return what makes the protocol of each new connection."""

    def make() -> asyncio.Protocol:
        return _Refusal() if len(server.connections) >= limit else cast(asyncio.Protocol, server())

    return make


@asynccontextmanager
async def open_listener(runner: web.AppRunner, host: str, port: int) -> AsyncIterator[tuple[str, int]]:
    """Listen with the limit; yields the address that was bound."""
    assert runner.server is not None, "set up before"
    listener = await asyncio.get_running_loop().create_server(make_factory(runner.server), host, port, backlog=128)
    try:
        bound = listener.sockets[0].getsockname()
        yield bound[0], bound[1]
    finally:
        listener.close()


async def read_body(request: web.Request) -> bytes:
    """Read a request's body within its time; raises HTTPRequestTimeout."""
    try:
        async with asyncio.timeout(READ_SECONDS):
            return await request.read()
    except TimeoutError as error:
        raise web.HTTPRequestTimeout(text=f"the body did not come within {READ_SECONDS:.0f} s") from error


async def send_answer(
    request: web.Request, body: bytes, headers: Mapping[str, str], unsent: UnsentBytes
) -> web.Response:
    """Send an answer while it counts as unsent; cut off whoever does not take it in time."""
    if not unsent.has_room(len(body)):
        raise web.HTTPServiceUnavailable(text="too many answers wait for their readers: ask again in a moment")
    response = web.Response(body=body, content_type="application/json", headers=headers)
    num_bytes = len(body)
    unsent.add(num_bytes)
    try:
        async with asyncio.timeout(SEND_SECONDS):
            await response.prepare(request)
            await response.write_eof()
    except TimeoutError:
        if request.transport is not None:
            request.transport.abort()
    finally:
        unsent.remove(num_bytes)
    return response
