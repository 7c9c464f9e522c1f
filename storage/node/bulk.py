"""The node's bulk port: shards over plain TCP, with the checks, words and receipts of the HTTP API (da/bulk.py).

A connection's control runs in the event loop, its bytes in a thread of its own pool, so slow clients hold up neither
the loop nor the disk threads. Invariant: every wait has a deadline, and a connection out of step is closed.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from concurrent.futures import Executor, ThreadPoolExecutor

from da.bulk import (
    CONTINUE,
    REQUEST_PREFIX_BYTES,
    GetRequest,
    decode_request,
    decode_request_prefix,
    encode_answer,
)
from da.core.errors import Malformed
from da.protocol import PutRequest, encode_receipt
from storage.core.errors import BadlyEncoded, MalformedRequest, RootMismatch, StoreRefusal, UploadInterrupted
from storage.core.pace import MIN_BYTES_PER_SECOND, Pace
from storage.node.admission import Admission
from storage.node.body import ShardReader
from storage.node.engine import StoreEngine, Upload
from storage.node.metrics import Metrics
from storage.node.threads import run_in

log = logging.getLogger(__name__)

MAX_CONNECTIONS = 128
"""Open at once; each may hold a thread while bytes flow. More are closed at once: clients take HTTP then."""

IDLE_SECONDS = 60.0
"""A connection without a request for so long is closed."""

REQUEST_SECONDS = 10.0
"""For the rest of a request that has begun, and for sending an answer."""

CHUNK_BYTES = 1 << 20
"""Received, hashed and written at once."""

SOCKET_BUFFER_BYTES = 4 << 20
"""Asked of the system for each direction."""


class BulkServer:
    """Listens on one port and serves one node."""

    def __init__(
        self,
        admission: Admission,
        engine: StoreEngine,
        metrics: Metrics,
        executor: Executor,
        *,
        body_timeout_seconds: float,
    ) -> None:
        """Serve ``engine``, whose work runs in ``executor``; a body of which nothing comes is given up."""
        self._admission = admission
        self._engine = engine
        self._metrics = metrics
        self._executor = executor
        self._body_timeout_seconds = body_timeout_seconds
        self._threads = ThreadPoolExecutor(MAX_CONNECTIONS, thread_name_prefix="bulk")
        self._connections: dict[asyncio.Task[None], socket.socket] = {}
        self._listener: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None

    async def start(self, host: str, port: int = 0) -> int:
        """Listen, and return the port; raises ``OSError``."""
        loop = asyncio.get_running_loop()
        infos = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = infos[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BUFFER_BYTES)
            listener.bind(address)
            listener.listen(MAX_CONNECTIONS)
            listener.setblocking(False)
        except OSError:
            listener.close()
            raise
        self._listener = listener
        self._accepting = asyncio.create_task(self._accept(listener))
        bound: int = listener.getsockname()[1]
        return bound

    async def close(self) -> None:
        """Stop listening and cut all connections; nothing unsigned is kept."""
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.gather(self._accepting, return_exceptions=True)
        if self._listener is not None:
            self._listener.close()
        tasks = list(self._connections)
        for task, sock in self._connections.items():
            _cut(sock)
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._threads.shutdown(wait=True, cancel_futures=True)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            sock, _ = await loop.sock_accept(listener)
            if len(self._connections) >= MAX_CONNECTIONS:
                sock.close()
                continue
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER_BYTES)
            task = asyncio.create_task(self._serve(sock))
            self._connections[task] = sock
            task.add_done_callback(lambda done: self._connections.pop(done, None))

    async def _serve(self, sock: socket.socket) -> None:
        try:
            while True:
                prefix = await self._read(sock, REQUEST_PREFIX_BYTES, IDLE_SECONDS)
                if not await self._answer(sock, prefix):
                    return
        except (OSError, EOFError, Malformed) as error:  # TimeoutError is an OSError
            log.debug("bulk connection ended: %s", error)
        finally:
            sock.close()

    async def _answer(self, sock: socket.socket, prefix: bytes) -> bool:
        """Serve one request; False when the connection is out of step."""
        num_bytes = decode_request_prefix(prefix)
        try:
            request = decode_request(await self._read(sock, num_bytes, REQUEST_SECONDS))
        except Malformed as error:
            await self._send(sock, encode_answer(*self._admission.describe("bulk", MalformedRequest(str(error)))))
            return True
        if isinstance(request, PutRequest):
            return await self._put(sock, request)
        return await self._get(sock, request)

    async def _put(self, sock: socket.socket, put: PutRequest) -> bool:
        is_asked = False
        try:
            view, offer = await self._admission.admit(put)
            if not await run_in(self._executor, self._engine.renew, offer):
                with self._admission.take_slot(_get_peer(sock)), self._engine.upload(offer) as upload:
                    is_asked = True
                    await self._send(sock, encode_answer(CONTINUE))
                    await run_in(self._threads, self._receive, sock, upload)
                    await run_in(self._executor, self._engine.commit, upload)
                self._metrics.put_bytes.inc(offer.shard_bytes)
            receipt = self._admission.sign(put, view)
        except StoreRefusal as error:
            await self._send(sock, encode_answer(*self._admission.describe("bulk put", error)))
            # The body may have been cut short: only after a check of all of it is the client in step for sure.
            return not is_asked or isinstance(error, (RootMismatch, BadlyEncoded))
        await self._send(sock, encode_answer(200, encode_receipt(receipt)))
        return True

    async def _get(self, sock: socket.socket, get: GetRequest) -> bool:
        try:
            record = await run_in(self._executor, self._engine.get_record, get.blob, get.seat)
            stop = record.shard_bytes if get.stop is None else get.stop
            if not get.start <= stop <= record.shard_bytes:
                raise MalformedRequest(f"bytes {get.start} to {stop} of a shard of {record.shard_bytes}")
            reader = await run_in(self._executor, self._engine.open_body, get.blob, get.seat)
        except StoreRefusal as error:
            await self._send(sock, encode_answer(*self._admission.describe("bulk get", error)))
            return True
        try:
            await self._send(sock, encode_answer(200, body_bytes=stop - get.start))
            await run_in(self._threads, self._send_range, sock, reader, get.start, stop)
        finally:
            reader.close()
        self._metrics.get_bytes.inc(stop - get.start)
        return True

    def _receive(self, sock: socket.socket, upload: Upload) -> None:
        """Take the body; blocking. Reads no byte beyond it."""
        expected, received = upload.offer.shard_bytes, 0
        pace = Pace(expected_bytes=expected)
        buffer = memoryview(bytearray(min(CHUNK_BYTES, expected)))
        filled = 0
        try:
            while received < expected:
                sock.settimeout(min(self._body_timeout_seconds, pace.compute_patience() / 1_000))
                started = time.monotonic()
                try:
                    got = sock.recv_into(buffer[filled : filled + expected - received])
                except TimeoutError:
                    waited = time.monotonic() - started
                    pace.note(0, int(waited * 1_000) + 1)
                    if waited >= self._body_timeout_seconds:
                        raise
                    continue
                pace.note(got, int((time.monotonic() - started) * 1_000))
                if got == 0:
                    raise UploadInterrupted(got=received, expected=expected)
                filled += got
                received += got
                if filled == len(buffer) or received == expected:
                    upload.write(buffer[:filled])
                    filled = 0
        except OSError as error:  # TimeoutError is one; DiskFull is a refusal and passes
            raise UploadInterrupted(got=received, expected=expected) from error
        finally:
            _set_waiting(sock)

    def _send_range(self, sock: socket.socket, reader: ShardReader, start: int, stop: int) -> None:
        """Send bytes; blocking."""
        ends = time.monotonic() + self._body_timeout_seconds + (stop - start) / MIN_BYTES_PER_SECOND
        try:
            while start < stop:
                sock.settimeout(max(0.001, min(self._body_timeout_seconds, ends - time.monotonic())))
                chunk = reader.read(start, min(CHUNK_BYTES, stop - start))
                if not chunk:
                    raise EOFError(f"the shard ends at byte {start}, expected {stop}")
                sock.sendall(chunk)
                start += len(chunk)
        finally:
            _set_waiting(sock)

    async def _read(self, sock: socket.socket, num_bytes: int, seconds: float) -> bytes:
        loop, data = asyncio.get_running_loop(), bytearray()
        async with asyncio.timeout(seconds):
            while len(data) < num_bytes:
                part = await loop.sock_recv(sock, num_bytes - len(data))
                if not part:
                    raise EOFError(f"closed after {len(data)} of {num_bytes} bytes")
                data += part
        return bytes(data)

    async def _send(self, sock: socket.socket, data: bytes) -> None:
        async with asyncio.timeout(REQUEST_SECONDS):
            await asyncio.get_running_loop().sock_sendall(sock, data)


def _get_peer(sock: socket.socket) -> str:
    """Return the address that an upload comes from; raises ``OSError`` when it is gone."""
    return str(sock.getpeername()[0])


def _cut(sock: socket.socket) -> None:
    """End a connection under whoever waits for it."""
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError as error:
        log.debug("connection was gone: %s", error)


def _set_waiting(sock: socket.socket) -> None:
    """Give a socket back to the event loop; it may have been closed meanwhile."""
    try:
        sock.setblocking(False)
    except OSError as error:
        log.debug("connection was closed: %s", error)
