"""Calls to one storage node over its bulk port; da/node_calls.py does the same over HTTP.

Invariant: as there. A connection is used again only after a call that ended in step with the node.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Executor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from da.bulk import (
    ANSWER_PREFIX_BYTES,
    CONTINUE,
    Answer,
    GetRequest,
    decode_answer_prefix,
    encode_get_frame,
    encode_put_frame,
)
from da.core.blob import BlobHeader, compute_shard_bytes
from da.core.errors import FaultKind
from da.core.merkle import RootBuilder
from da.core.receipt import Receipt
from da.core.types import BlobId, ReceiptTerms, Seat
from da.counting import Traffic
from da.cutting import run_cut
from da.protocol import PutRequest, decode_refusal
from da.seat_faults import check_receipt, fail, guard
from da.shard_io import Progress, ShardBody

CONNECT_SECONDS = 2.0
"""Longest wait for a connection, before HTTP is taken instead."""

HASH_BYTES_AT_ONCE = 256 * 1024
"""Received before they are hashed: still in the cache of the processor that copied them."""

BUSY_PAUSE_SECONDS = 1.0
"""A busy node is asked again after this, within the deadline."""

SOCKET_BUFFER_BYTES = 4 << 20
"""Asked of the system for each direction: fewer and longer calls."""

Address = tuple[str, int]
"""Host and bulk port."""


@dataclass(slots=True)
class BulkConnections:
    """Open connections by address; of one event loop."""

    traffic: Traffic
    _idle: dict[Address, list[socket.socket]] = field(default_factory=dict)

    async def connect(self, address: Address) -> socket.socket:
        """Return a connection, used before or new; raises ``OSError`` or ``TimeoutError``."""
        idle = self._idle.get(address)
        while idle:
            sock = idle.pop()
            if _is_quiet(sock):
                return sock
            sock.close()
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(CONNECT_SECONDS):
            infos = await loop.getaddrinfo(*address, type=socket.SOCK_STREAM)
            sock = self.traffic.make_socket_factory()(infos[0])
            try:
                sock.setblocking(False)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER_BYTES)
                await loop.sock_connect(sock, infos[0][4])
            except BaseException:
                sock.close()
                raise
            return sock

    @asynccontextmanager
    async def use(self, address: Address, sock: socket.socket) -> AsyncIterator[None]:
        """Keep the connection for later when the block ends well; close it when it does not."""
        try:
            yield
        except BaseException:
            sock.close()
            raise
        self.keep(address, sock)

    def keep(self, address: Address, sock: socket.socket) -> None:
        """Keep a connection that is in step for the next call."""
        self._idle.setdefault(address, []).append(sock)

    def close(self) -> None:
        """Close all that are idle."""
        for idle in self._idle.values():
            for sock in idle:
                sock.close()
        self._idle.clear()


async def send_shard(
    connections: BulkConnections,
    address: Address,
    sock: socket.socket,
    seat: Seat,
    request: PutRequest,
    body: ShardBody,
    *,
    terms: ReceiptTerms,
    deadline_seconds: float,
) -> Receipt:
    """Put a shard and return the seat's receipt, verified under ``terms``; raises ``SeatFailed``."""
    loop = asyncio.get_running_loop()
    said: list[str] = []
    async with guard(seat, deadline_seconds, said), connections.use(address, sock):
        while True:
            await loop.sock_sendall(sock, encode_put_frame(request))
            status, answer = await _read_answer(sock)
            if status == CONTINUE:
                async for piece in body.open_pieces():
                    await loop.sock_sendall(sock, piece)
                status, answer = await _read_answer(sock)
            if status == 200:
                return check_receipt(seat, answer, terms)
            if status != 429:
                raise fail(seat, FaultKind.REFUSED, decode_refusal(status, answer))
            said[:] = [decode_refusal(status, answer)]
            await asyncio.sleep(BUSY_PAUSE_SECONDS)


async def fetch_shard(
    connections: BulkConnections,
    address: Address,
    sock: socket.socket,
    seat: Seat,
    blob: BlobId,
    header: BlobHeader,
    pieces: Sequence[memoryview],
    *,
    deadline_seconds: float,
    progress: Progress,
    threads: Executor,
) -> None:
    """Get the seat's shard into ``pieces``, hashing it while it comes, and check its root; raises ``SeatFailed``.

    A thread receives and hashes, so that each byte is touched where it was copied to. When this returns or raises,
    nothing writes to ``pieces`` any more.
    """
    num_bytes = compute_shard_bytes(header.size_bytes, header.num_data)
    builder = RootBuilder(leaf_bytes=header.leaf_bytes)
    async with guard(seat, deadline_seconds), connections.use(address, sock):
        await _open(sock, seat, GetRequest(blob=blob, seat=seat.index, start=0, stop=None), num_bytes)
        await run_cut(threads, sock, lambda: _receive(sock, pieces, builder, header.leaf_bytes, progress))
        root, expected = builder.finish(), header.shard_roots[seat.index]
        if root != expected:
            raise fail(seat, FaultKind.BAD_SHARD, f"bytes hash to root {root.hex()}, expected {expected.hex()}")


class BulkStream:
    """A shard as it comes over the bulk port, from some byte to its end."""

    def __init__(self, seat: Seat, sock: socket.socket, deadline_seconds: float) -> None:
        self._seat = seat
        self._sock = sock
        self._deadline_seconds = deadline_seconds

    async def read_into(self, buffer: memoryview) -> None:
        """See ``ShardStream``."""
        async with guard(self._seat, self._deadline_seconds):
            await _read_exactly(self._sock, buffer)

    def close(self) -> None:
        """See ``ShardStream``."""
        self._sock.close()


async def open_stream(
    sock: socket.socket, seat: Seat, blob: BlobId, *, start: int, num_bytes: int, deadline_seconds: float
) -> BulkStream:
    """Ask for the ``num_bytes`` of the seat's shard from ``start`` on; raises ``SeatFailed``."""
    try:
        async with guard(seat, deadline_seconds):
            await _open(sock, seat, GetRequest(blob=blob, seat=seat.index, start=start, stop=None), num_bytes)
    except BaseException:
        sock.close()
        raise
    return BulkStream(seat, sock, deadline_seconds)


async def _open(sock: socket.socket, seat: Seat, request: GetRequest, num_bytes: int) -> None:
    """Ask for a range; returns when ``num_bytes`` of it follow."""
    await asyncio.get_running_loop().sock_sendall(sock, encode_get_frame(request))
    answer = await _read_prefix(sock)
    text = bytearray(answer.json_bytes)
    await _read_exactly(sock, memoryview(text))
    if answer.status != 200:
        raise fail(seat, FaultKind.REFUSED, decode_refusal(answer.status, bytes(text)))
    if answer.body_bytes != num_bytes:
        raise fail(seat, FaultKind.BAD_SHARD, f"{answer.body_bytes} bytes, expected {num_bytes}")


def _receive(
    sock: socket.socket, pieces: Sequence[memoryview], builder: RootBuilder, leaf_bytes: int, progress: Progress
) -> None:
    """Fill ``pieces`` and hash them; blocking."""
    sock.setblocking(True)
    try:
        for piece in pieces:
            received = hashed = 0
            while received < len(piece):
                got = sock.recv_into(piece[received:])
                if got == 0:
                    raise EOFError(f"connection closed after {progress.num_bytes} bytes of the shard")
                received += got
                progress.num_bytes += got
                whole = received - (builder.size_bytes + received - hashed) % leaf_bytes
                stop = received if received == len(piece) else whole
                if received == len(piece) or stop - hashed >= HASH_BYTES_AT_ONCE:
                    builder.update(piece[hashed:stop])
                    hashed = stop
    finally:
        with suppress(OSError):  # it may have been closed meanwhile
            sock.setblocking(False)


async def _read_answer(sock: socket.socket) -> tuple[int, bytes]:
    answer = await _read_prefix(sock)
    if answer.body_bytes:
        raise EOFError(f"{answer.body_bytes} bytes after an answer that has none")
    text = bytearray(answer.json_bytes)
    await _read_exactly(sock, memoryview(text))
    return answer.status, bytes(text)


async def _read_prefix(sock: socket.socket) -> Answer:
    prefix = bytearray(ANSWER_PREFIX_BYTES)
    await _read_exactly(sock, memoryview(prefix))
    return decode_answer_prefix(bytes(prefix))


async def _read_exactly(sock: socket.socket, buffer: memoryview) -> None:
    loop, at = asyncio.get_running_loop(), 0
    while at < len(buffer):
        got = await loop.sock_recv_into(sock, buffer[at:])
        if got == 0:
            raise EOFError(f"connection closed after {at} of {len(buffer)} bytes")
        at += got


def _is_quiet(sock: socket.socket) -> bool:
    """Tell whether an idle connection is still open and has nothing to say."""
    try:
        sock.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
