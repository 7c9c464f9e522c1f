"""The node's bulk port: shards over plain TCP, with the checks, words and receipts of the HTTP API (da/bulk.py).

Each connection has a thread: handing a shard from thread to thread cost more than hashing it. The event loop accepts,
and is asked only where a committee is not known yet. Invariant: every wait has a deadline, and a connection out of step
is closed.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import time
from concurrent.futures import Future, ThreadPoolExecutor

from da.bulk import (
    CONTINUE,
    REQUEST_PREFIX_BYTES,
    GetRequest,
    decode_request,
    decode_request_prefix,
    encode_answer,
)
from da.core.errors import Malformed
from da.memory import BufferPool
from da.protocol import PutRequest, encode_receipt
from storage.core.errors import BadlyEncoded, MalformedRequest, RootMismatch, StoreRefusal
from storage.core.pace import MIN_BYTES_PER_SECOND
from storage.node.admission import Admission
from storage.node.body import FileReader, ShardReader
from storage.node.engine import StoreEngine
from storage.node.metrics import Metrics
from storage.node.receiving import CHUNK_BYTES, receive_body
from storage.node.room import MEDIUM_ERRORS
from storage.node.upload import ShardOffer
from storage.node.watch import ChainView

log = logging.getLogger(__name__)

MAX_CONNECTIONS = 128
"""Open at once; each holds a thread. For one more, the one that waits longest for a request is cut."""

IDLE_SECONDS = 60.0
"""A connection without a request for so long is closed."""

REQUEST_SECONDS = 10.0
"""For the rest of a request that has begun, and for sending an answer."""

ACCEPT_AGAIN_SECONDS = 0.5
"""After a connection that could not be accepted."""

SEND_BYTES = 4 << 20
"""Sent at once; each has a deadline of its own."""

SOCKET_BUFFER_BYTES = 4 << 20
"""Asked of the system for each direction."""


class BulkServer:
    """Listens on one port and serves one node."""

    def __init__(
        self,
        admission: Admission,
        engine: StoreEngine,
        metrics: Metrics,
        *,
        body_timeout_seconds: float,
    ) -> None:
        """Serve ``engine``; a body of which nothing comes is given up."""
        self._admission = admission
        self._engine = engine
        self._metrics = metrics
        self._body_timeout_seconds = body_timeout_seconds
        self._threads = ThreadPoolExecutor(MAX_CONNECTIONS, thread_name_prefix="bulk")
        self._buffers = BufferPool(max_bytes=MAX_CONNECTIONS * CHUNK_BYTES)
        self._connections: dict[Future[None], socket.socket] = {}
        self._waiting: dict[socket.socket, float] = {}
        # Connections without a whole request, and since when.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listener: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None

    async def start(self, host: str, port: int = 0) -> int:
        """Listen, and return the port; raises ``OSError``."""
        loop = self._loop = asyncio.get_running_loop()
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
        for sock in list(self._connections.values()):
            _cut(sock)
        await asyncio.to_thread(self._threads.shutdown, wait=True)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, _ = await loop.sock_accept(listener)
            except OSError as error:  # no descriptor is left, or the client went away: the next one may do better
                log.warning("no connection on the bulk port for now: %s", error)
                await asyncio.sleep(ACCEPT_AGAIN_SECONDS)
                continue
            if len(self._connections) >= MAX_CONNECTIONS and not self._cut_idle():
                sock.close()
                continue
            self._waiting[sock] = time.monotonic()
            try:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER_BYTES)
                served = self._threads.submit(self._serve, sock)
            except (OSError, RuntimeError) as error:  # it is gone, or the system starts no thread
                log.warning("a connection on the bulk port was not served: %s", error)
                self._waiting.pop(sock, None)
                sock.close()
                continue
            self._connections[served] = sock
            served.add_done_callback(self._forget)

    def _cut_idle(self) -> bool:
        """Cut the connection that waits longest for a request; False when all are at work."""
        for sock, _ in sorted(self._waiting.items(), key=lambda item: item[1]):
            if self._waiting.pop(sock, None) is not None:  # it has no request yet: its thread would have taken it out
                _cut(sock)
                return True
        return False

    def _forget(self, served: Future[None]) -> None:
        self._connections.pop(served, None)
        if not served.cancelled() and served.exception() is not None:
            log.error("a bulk connection failed", exc_info=served.exception())

    def _serve(self, sock: socket.socket) -> None:
        try:
            while self._answer(sock, _read(sock, REQUEST_PREFIX_BYTES, IDLE_SECONDS)):
                self._waiting[sock] = time.monotonic()
        except (OSError, EOFError, Malformed) as error:  # TimeoutError is an OSError
            log.debug("bulk connection ended: %s", error)
        finally:
            self._waiting.pop(sock, None)
            sock.close()

    def _answer(self, sock: socket.socket, prefix: bytes) -> bool:
        """Serve one request; False when the connection is out of step."""
        num_bytes = decode_request_prefix(prefix)
        try:
            request = decode_request(_read(sock, num_bytes, REQUEST_SECONDS))
            self._waiting.pop(sock, None)
        except Malformed as error:
            _send(sock, encode_answer(*self._admission.describe("bulk", MalformedRequest(str(error)))))
            return True
        if isinstance(request, PutRequest):
            return self._put(sock, request)
        self._get(sock, request)
        return True

    def _put(self, sock: socket.socket, put: PutRequest) -> bool:
        is_asked = False
        try:
            view, offer = self._admit(put)
            if not self._engine.renew(offer):
                with self._admission.take_slot(_get_peer(sock)), self._engine.upload(offer) as upload:
                    is_asked = True
                    _send(sock, encode_answer(CONTINUE))
                    receive_body(sock, upload, self._buffers, body_timeout_seconds=self._body_timeout_seconds)
                    self._engine.commit(upload)
                self._metrics.put_bytes.inc(offer.shard_bytes)
            receipt = self._admission.sign(put, view)
        except StoreRefusal as error:
            _send(sock, encode_answer(*self._admission.describe("bulk put", error)))
            # The body may have been cut short: only after a check of all of it is the client in step for sure.
            return not is_asked or isinstance(error, (RootMismatch, BadlyEncoded))
        _send(sock, encode_answer(200, encode_receipt(receipt)))
        return True

    def _admit(self, put: PutRequest) -> tuple[ChainView, ShardOffer]:
        """Check everything but the bytes, in the event loop where the chain must be asked first."""
        admitted = self._admission.admit_at_once(put)
        if admitted is not None:
            return admitted
        assert self._loop is not None, "there are no connections before start"
        return asyncio.run_coroutine_threadsafe(self._admission.admit(put), self._loop).result(REQUEST_SECONDS)

    def _get(self, sock: socket.socket, get: GetRequest) -> None:
        try:
            record = self._engine.get_record(get.blob, get.seat)
            stop = record.shard_bytes if get.stop is None else get.stop
            if not get.start <= stop <= record.shard_bytes:
                raise MalformedRequest(f"bytes {get.start} to {stop} of a shard of {record.shard_bytes}")
            reader = self._engine.open_body(get.blob, get.seat)
        except StoreRefusal as error:
            _send(sock, encode_answer(*self._admission.describe("bulk get", error)))
            return
        try:
            _send(sock, encode_answer(200, body_bytes=stop - get.start))
            self._send_range(sock, reader, get.start, stop)
        except OSError as error:
            if error.errno in MEDIUM_ERRORS:  # the client notices that bytes are missing
                self._metrics.failures.inc()
                self._engine.health.note(error)
                log.error("sending shard %d of blob %s broke off: %s", get.seat, get.blob.hex(), error)
            raise
        finally:
            reader.close()
        self._metrics.get_bytes.inc(stop - get.start)

    def _send_range(self, sock: socket.socket, reader: ShardReader, start: int, stop: int) -> None:
        """Send bytes; those of a file go from the system's cache to the socket, and are not copied here."""
        ends = time.monotonic() + self._body_timeout_seconds + (stop - start) / MIN_BYTES_PER_SECOND
        fetch = reader.map if isinstance(reader, FileReader) else reader.read
        while start < stop:
            chunk = fetch(start, min(SEND_BYTES, stop - start))
            if not chunk:
                raise EOFError(f"the shard ends at byte {start}, expected {stop}")
            sock.settimeout(max(0.001, min(self._body_timeout_seconds, ends - time.monotonic())))
            try:
                sock.sendall(chunk)
            except OSError as error:
                if error.errno == errno.EFAULT:  # what the system says of a mapped page that it can't read
                    raise OSError(errno.EIO, f"no byte {start} and on could be read") from error
                raise
            start += len(chunk)


def _read(sock: socket.socket, num_bytes: int, seconds: float) -> bytes:
    data, ends = bytearray(), time.monotonic() + seconds
    while len(data) < num_bytes:
        sock.settimeout(max(0.001, ends - time.monotonic()))
        part = sock.recv(num_bytes - len(data))
        if not part:
            raise EOFError(f"closed after {len(data)} of {num_bytes} bytes")
        data += part
    return bytes(data)


def _send(sock: socket.socket, data: bytes) -> None:
    sock.settimeout(REQUEST_SECONDS)
    sock.sendall(data)


def _get_peer(sock: socket.socket) -> str:
    """Return the address that an upload comes from; raises ``OSError`` when it is gone."""
    return str(sock.getpeername()[0])


def _cut(sock: socket.socket) -> None:
    """End a connection under whoever waits for it."""
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError as error:
        log.debug("connection was gone: %s", error)
