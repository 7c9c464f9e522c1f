"""The way to each seat: its bulk port where both sides have one and the shard is worth it, else HTTP.

A bulk connection that breaks, as where something on the way cuts such connections, is no fault of the seat yet: HTTP
is taken for what can be sent or asked for again, and for what comes in the next while. Invariant: the way never changes
what is sent, checked or signed.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar
from urllib.parse import urlsplit

import aiohttp

from da import bulk_calls, node_calls
from da.bulk_calls import Address, BulkConnections
from da.core.blob import BlobHeader, compute_shard_bytes
from da.core.errors import FaultKind, SeatFailed
from da.core.receipt import Receipt
from da.core.types import BlobId, ReceiptTerms, Seat
from da.counting import Traffic
from da.protocol import BatchRequest, PutRequest
from da.shard_io import Progress, ShardBody, ShardStream

BULK_MIN_BYTES = 1 << 20
"""Shorter shards go over HTTP: its connections are there anyway."""

ASK_SECONDS = 2.0
"""Longest wait for a node's status; without it, HTTP is taken."""

ASK_AGAIN_SECONDS = 30.0
"""A node that had no bulk port, or did not answer there, is asked again after this."""

MAX_FETCH_THREADS = 64
"""Shards received at once; one a seat. A fetch that finds none waits within its deadline."""

MAX_CONNECTIONS = 256
"""Four for each of 64 seats."""

READ_BUFFER_BYTES = 1 << 20
"""Bytes taken from a socket before the reader must catch up; k fetches hold k of these."""

T = TypeVar("T")

Way = tuple[Address, socket.socket]
"""A bulk port and a connection to it."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class SeatLinks:
    """Connections to all seats that were ever asked; of one event loop."""

    traffic: Traffic
    has_bulk: bool = True
    """Whether bulk ports are used at all."""
    _threads: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(MAX_FETCH_THREADS, thread_name_prefix="da-fetch")
    )
    """Each bulk fetch under way has one; started when needed."""
    _session: aiohttp.ClientSession | None = None
    _bulk: BulkConnections | None = None
    _ports: dict[str, Address] = field(default_factory=dict)
    _asked: dict[str, float] = field(default_factory=dict)
    _asking: dict[str, asyncio.Lock] = field(default_factory=dict)

    async def send_shard(
        self, seat: Seat, request: PutRequest, body: ShardBody, *, terms: ReceiptTerms, deadline_seconds: float
    ) -> Receipt:
        """Put a shard and return the verified receipt; raises ``SeatFailed``."""
        is_opened = False

        def note() -> None:
            nonlocal is_opened
            is_opened = True

        noted = body.call_when_opened(note)
        return await self._try_bulk(
            seat,
            body.num_bytes,
            lambda way, left_seconds: bulk_calls.send_shard(
                self._get_bulk(), *way, seat, request, noted, terms=terms, deadline_seconds=left_seconds
            ),
            lambda left_seconds: node_calls.send_shard(
                self.get_session(), seat, request, body, terms=terms, deadline_seconds=left_seconds
            ),
            deadline_seconds=deadline_seconds,
            can_repeat=lambda: body.can_repeat or not is_opened,
        )

    async def send_batch(
        self, seat: Seat, request: BatchRequest, body: ShardBody, *, message: bytes, deadline_seconds: float
    ) -> Receipt:
        """Put the seat's shards of a batch and return the verified receipt; raises ``SeatFailed``."""
        return await node_calls.send_batch(
            self.get_session(), seat, request, body, message=message, deadline_seconds=deadline_seconds
        )

    async def fetch_shard(
        self,
        seat: Seat,
        blob: BlobId,
        header: BlobHeader,
        pieces: Sequence[memoryview],
        *,
        deadline_seconds: float,
        progress: Progress,
    ) -> None:
        """Get the seat's shard into ``pieces``, checked against its root; raises ``SeatFailed``."""

        async def fetch_by_http(left_seconds: float) -> None:
            progress.num_bytes = 0
            await node_calls.fetch_shard(
                self.get_session(),
                seat,
                blob,
                header,
                pieces,
                deadline_seconds=left_seconds,
                progress=progress,
                threads=self._threads,
            )

        await self._try_bulk(
            seat,
            compute_shard_bytes(header.size_bytes, header.num_data),
            lambda way, left_seconds: bulk_calls.fetch_shard(
                self._get_bulk(),
                *way,
                seat,
                blob,
                header,
                pieces,
                deadline_seconds=left_seconds,
                progress=progress,
                threads=self._threads,
            ),
            fetch_by_http,
            deadline_seconds=deadline_seconds,
        )

    async def open_stream(
        self, seat: Seat, blob: BlobId, *, start: int, num_bytes: int, deadline_seconds: float
    ) -> ShardStream:
        """Ask for the last ``num_bytes`` of the seat's shard, from ``start`` on; raises ``SeatFailed``.

        Asking and each later read have the whole of ``deadline_seconds``.
        """

        async def open_by_bulk(way: Way, _: float) -> ShardStream:
            stream = await bulk_calls.open_stream(
                way[1], seat, blob, start=start, num_bytes=num_bytes, deadline_seconds=deadline_seconds
            )
            return _ContinuedStream(self, seat, blob, start, deadline_seconds, stream)

        async def open_by_http(_: float) -> ShardStream:
            return await node_calls.open_stream(
                self.get_session(), seat, blob, start=start, deadline_seconds=deadline_seconds
            )

        return await self._try_bulk(seat, num_bytes, open_by_bulk, open_by_http, deadline_seconds=deadline_seconds)

    async def fetch_header(self, seat: Seat, blob: BlobId, *, deadline_seconds: float) -> BlobHeader:
        """Get the blob's header, checked against its id; raises ``SeatFailed``."""
        return await node_calls.fetch_header(self.get_session(), seat, blob, deadline_seconds=deadline_seconds)

    def get_session(self) -> aiohttp.ClientSession:
        """Return the HTTP session, made when first asked for."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=MAX_CONNECTIONS, socket_factory=self.traffic.make_socket_factory()
                ),
                timeout=aiohttp.ClientTimeout(total=None),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                read_bufsize=READ_BUFFER_BYTES,
            )
        return self._session

    def leave_bulk(self, seat: Seat, failure: SeatFailed) -> None:
        """Take HTTP for a while, as a bulk connection broke; raises ``failure`` where the seat has said it itself."""
        if failure.fault.kind is not FaultKind.UNREACHABLE:
            raise failure
        _log.info("bulk connection: %s; taking HTTP", failure)
        self._pass_by(seat)

    def _pass_by(self, seat: Seat) -> None:
        self._ports.pop(seat.url, None)
        self._asked[seat.url] = _now()

    async def close(self) -> None:
        """Close all connections."""
        self._threads.shutdown(wait=False)
        if self._bulk is not None:
            self._bulk.close()
            self._bulk = None
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _get_bulk(self) -> BulkConnections:
        if self._bulk is None:
            self._bulk = BulkConnections(self.traffic)
        return self._bulk

    async def _try_bulk(
        self,
        seat: Seat,
        num_bytes: int,
        by_bulk: Callable[[Way, float], Awaitable[T]],
        by_http: Callable[[float], Awaitable[T]],
        *,
        deadline_seconds: float,
        can_repeat: Callable[[], bool] = lambda: True,
    ) -> T:
        """Take the bulk port where there is one, and HTTP where not, or for what is left of the time when that breaks.

        Raises: SeatFailed: the seat has said it itself, no time is left, or what was begun can't be repeated.
        """
        way, began = await self._connect(seat, num_bytes), _now()
        if way is not None:
            try:
                return await by_bulk(way, deadline_seconds)
            except SeatFailed as failure:
                self.leave_bulk(seat, failure)
                deadline_seconds -= _now() - began
                if deadline_seconds <= 0 or not can_repeat():
                    raise
        return await by_http(deadline_seconds)

    async def _connect(self, seat: Seat, num_bytes: int) -> Way | None:
        """Return a connection to the seat's bulk port, or None: take HTTP."""
        if not self.has_bulk or num_bytes < BULK_MIN_BYTES:
            return None
        address = await self._find_port(seat)
        if address is None:
            return None
        try:
            return address, await self._get_bulk().connect(address)
        except OSError as error:  # TimeoutError is one
            _log.info("bulk port %s:%d of seat %d: %s; taking HTTP", *address, seat.index, error)
            self._pass_by(seat)
            return None

    async def _find_port(self, seat: Seat) -> Address | None:
        async with self._asking.setdefault(seat.url, asyncio.Lock()):  # several seats may share a node
            return await self._ask_port(seat)

    async def _ask_port(self, seat: Seat) -> Address | None:
        if seat.url in self._ports:
            return self._ports[seat.url]
        if _now() - self._asked.get(seat.url, -ASK_AGAIN_SECONDS) < ASK_AGAIN_SECONDS:
            return None
        self._asked[seat.url] = _now()
        host = urlsplit(seat.url).hostname
        try:
            port = await node_calls.fetch_bulk_port(self.get_session(), seat, deadline_seconds=ASK_SECONDS)
        except SeatFailed as failure:
            _log.info("%s; taking HTTP", failure)
            return None
        if port is None or host is None:
            return None
        self._ports[seat.url] = (host, port)
        return self._ports[seat.url]


class _ContinuedStream:
    """A shard as it comes over the bulk port and, from where that breaks, over HTTP."""

    def __init__(
        self, links: SeatLinks, seat: Seat, blob: BlobId, start: int, deadline_seconds: float, stream: ShardStream
    ) -> None:
        self._links, self._seat, self._blob, self._at = links, seat, blob, start
        self._deadline_seconds = deadline_seconds
        self._stream, self._is_bulk = stream, True

    async def read_into(self, buffer: memoryview) -> None:
        """See ``ShardStream``."""
        try:
            await self._stream.read_into(buffer)
        except SeatFailed as failure:
            if not self._is_bulk:
                raise
            self._links.leave_bulk(self._seat, failure)
            self._stream.close()
            self._stream, self._is_bulk = await self._open_http(), False
            await self._stream.read_into(buffer)
        self._at += len(buffer)

    async def _open_http(self) -> ShardStream:
        return await node_calls.open_stream(
            self._links.get_session(), self._seat, self._blob, start=self._at, deadline_seconds=self._deadline_seconds
        )

    def close(self) -> None:
        """See ``ShardStream``."""
        self._stream.close()


def _now() -> float:
    return asyncio.get_running_loop().time()
