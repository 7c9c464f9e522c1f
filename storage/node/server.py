"""The HTTP API of a node (da/protocol.py, SPEC.md 5): checks, streams and signs; the engine does the rest.

Order of a PUT: request -> length -> tier -> committee and seat -> expiry -> code -> room -> body -> durable ->
signature.
Nothing of the body is read before there is room for all of it.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

import aiohttp
from aiohttp import web

from da.batch import MAX_BATCH_BYTES, decode_batch
from da.core.blob import compute_shard_bytes
from da.core.errors import Malformed
from da.core.receipt import Receipt
from da.core.types import BlobId, ShardIndex
from da.cutting import run_cut
from da.memory import BufferPool
from da.protocol import (
    BATCH_ROUTE,
    BLOB_HEADER_FIELD,
    BODY_TYPE,
    HEADER_ROUTE,
    METRICS_PATH,
    SHARD_ROUTE,
    STATUS_PATH,
    PutRequest,
    decode_batch_path,
    decode_blob_id,
    decode_put,
    decode_seat,
    encode_receipt,
)
from storage.core.errors import (
    DiskFailed,
    LengthRequired,
    MalformedRequest,
    RangeNotSatisfiable,
    ShardTooLarge,
    StoreBusy,
    StoreRefusal,
    UploadInterrupted,
)
from storage.core.pace import MIN_BYTES_PER_SECOND, Pace
from storage.core.ranges import parse_range
from storage.node.admission import Admission
from storage.node.bulk import BulkServer
from storage.node.connections import Connections
from storage.node.engine import StoreEngine
from storage.node.keeping_api import KeepingApi
from storage.node.metrics import CONTENT_TYPE, Metrics
from storage.node.page import render_page
from storage.node.receiving import CHUNK_BYTES, borrow_socket, finish_borrowed, receive_body
from storage.node.room import MEDIUM_ERRORS
from storage.node.slots import Slots
from storage.node.status import NodeState
from storage.node.threads import run_in
from storage.node.trace import Trace
from storage.node.upload import ShardOffer, Upload

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

WRITE_BYTES = 512 * 1024
"""Bytes gathered before a thread hashes and writes them: large enough to hide the hand-over."""

READ_BYTES = 1 << 20
"""Bytes read from disk in one go for a GET."""

MAX_DOWNLOADS = 128
"""Shards that are sent over HTTP at once; each holds a file and up to twice READ_BYTES."""

SOCKET_BYTES = 1 << 20
"""Bytes that aiohttp buffers of a body."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(slots=True)
class _Body:
    """How the body of a request is taken."""

    is_asked: bool = False
    """It was asked for, and may be under way."""
    is_direct: bool = False
    """It was taken past the HTTP library, which has lost its place in the connection."""


class Server:
    """The handlers of one node."""

    def __init__(
        self,
        state: NodeState,
        executor: Executor,
        trace: Trace,
        *,
        max_uploads: int,
        body_timeout_seconds: float,
        extra_codes: Sequence[tuple[int, int]] = (),
    ) -> None:
        """Serve ``state``'s engine; blocking work runs in ``executor``."""
        self._state = state
        self._engine: StoreEngine = state.engine
        self._executor = executor
        self._body_timeout_seconds = body_timeout_seconds
        self._bodies = ThreadPoolExecutor(max_uploads, thread_name_prefix="body")
        self._buffers = BufferPool(max_bytes=max_uploads * CHUNK_BYTES)
        self._metrics = Metrics()
        self._downloads = Slots("downloads under way", MAX_DOWNLOADS)
        self.connections = Connections()
        self._admission = Admission(state, trace, self._metrics, max_uploads=max_uploads, extra_codes=extra_codes)

    def make_app(self) -> web.Application:
        """Return the application."""
        app = web.Application(middlewares=[self._answer_refusals])
        app.on_cleanup.append(self._close)
        app.router.add_put(SHARD_ROUTE, self.put_shard, expect_handler=_defer_continue)
        app.router.add_put(BATCH_ROUTE, self.put_batch)
        app.router.add_get(SHARD_ROUTE, self.get_shard)
        app.router.add_get(HEADER_ROUTE, self.get_header)
        app.router.add_get(STATUS_PATH, self.get_status)
        app.router.add_get(METRICS_PATH, self.get_metrics)
        app.router.add_get("/", self.get_page)
        KeepingApi(self._engine, self._executor).add_routes(app)
        return app

    async def _close(self, _: web.Application) -> None:
        self._bodies.shutdown(wait=False, cancel_futures=True)  # each ends with the handler that waits for it

    def make_bulk(self) -> BulkServer:
        """Return the same node's bulk port."""
        return BulkServer(
            self._admission,
            self._engine,
            self._metrics,
            body_timeout_seconds=self._body_timeout_seconds,
        )

    async def put_shard(self, request: web.Request) -> web.StreamResponse:
        """Keep a shard and answer with a receipt."""
        body = _Body()
        try:
            response = await self._put(request, body)
        except StoreRefusal as error:
            response = self._make_refusal(request, error)
        if body.is_direct or (_is_waiting(request) and not body.is_asked):
            # Or the client was answered before it was asked for its body, which may still come, or not.
            response.force_close()
        return response

    async def _put(self, request: web.Request, body: _Body) -> web.Response:
        put = _read_put(request)
        _check_length(request, put)
        view, offer = await self._admission.admit(put)
        if not await run_in(self._executor, self._engine.renew, offer):
            await self._receive(request, offer, body)
        return _make_answer(self._admission.sign(put, view))

    async def put_batch(self, request: web.Request) -> web.StreamResponse:
        """Keep the shards of many small blobs, and answer with one receipt."""
        try:
            batch = decode_batch_path(seat=request.match_info["seat"], query=request.query)
        except Malformed as error:
            raise MalformedRequest(str(error)) from error
        num_bytes = request.content_length
        if num_bytes is None:
            raise LengthRequired
        if num_bytes > MAX_BATCH_BYTES:
            raise ShardTooLarge(got=num_bytes, maximum=MAX_BATCH_BYTES)
        with self._admission.take_slot(_get_peer(request)):
            data = bytearray()
            async for chunk in self._iterate_body(request, num_bytes):
                data += chunk
            try:
                entries = await run_in(self._executor, decode_batch, data)
            except Malformed as error:
                raise MalformedRequest(str(error)) from error
            view, offers = await self._admission.admit_batch(batch, entries)
            await run_in(self._executor, self._engine.keep_batch, offers, [entry.shard for entry in entries])
        self._metrics.put_bytes.inc(sum(offer.shard_bytes for offer in offers))
        return _make_answer(await run_in(self._executor, self._admission.sign_batch, batch, entries, view))

    async def get_shard(self, request: web.Request) -> web.StreamResponse:
        """Send a shard, or the one range that was asked for."""
        blob, shard = _decode_path(request)
        record = await run_in(self._executor, self._engine.get_record, blob, shard)
        span = parse_range(request.headers.get("Range"), record.shard_bytes)
        start, stop = span or (0, record.shard_bytes)
        response = web.StreamResponse(status=200 if span is None else 206)
        response.content_type = BODY_TYPE
        response.content_length = stop - start
        response.headers["Accept-Ranges"] = "bytes"
        if span is not None:
            response.headers["Content-Range"] = f"bytes {start}-{stop - 1}/{record.shard_bytes}"
        if request.method == "HEAD":
            await response.prepare(request)
            await response.write_eof()
            return response
        with self._downloads.take(_get_peer(request)):
            await self._send_body(request, response, blob, shard, start, stop)
        await response.write_eof()
        return response

    async def _send_body(
        self,
        request: web.Request,
        response: web.StreamResponse,
        blob: BlobId,
        shard: ShardIndex,
        start: int,
        stop: int,
    ) -> None:
        """Send bytes [start, stop) of a shard to a reader that takes them fast enough; cut the connection otherwise."""
        reader = await run_in(self._executor, self._engine.open_body, blob, shard)
        ends = self._body_timeout_seconds + (stop - start) / MIN_BYTES_PER_SECOND
        try:
            async with asyncio.timeout(ends):
                await response.prepare(request)
                while start < stop:
                    chunk = await run_in(self._executor, reader.read, start, min(READ_BYTES, stop - start))
                    if not chunk:
                        raise OSError(f"shard {shard} of blob {blob.hex()} ends at byte {start}, expected {stop}")
                    async with asyncio.timeout(self._body_timeout_seconds):
                        await response.write(chunk)
                    start += len(chunk)
                    self._metrics.get_bytes.inc(len(chunk))
        except TimeoutError as error:
            if request.transport is not None:
                request.transport.abort()
            raise ConnectionResetError(f"the reader is too slow: {stop - start} bytes are not taken") from error
        except OSError as error:
            if isinstance(error, ConnectionError) or not response.prepared:
                raise
            # The answer has begun, and no other can be given: the client notices that bytes are missing.
            self._metrics.failures.inc()
            self._engine.health.note(error)
            log.error("sending shard %d of blob %s broke off: %s", shard, blob.hex(), error)
            raise ConnectionResetError("the shard could not be read") from error
        finally:
            reader.close()

    async def get_header(self, request: web.Request) -> web.StreamResponse:
        """Send a blob's encoded header."""
        try:
            blob = decode_blob_id(request.match_info["blob"])
        except Malformed as error:
            raise MalformedRequest(str(error)) from error
        header = await run_in(self._executor, self._engine.get_header, blob)
        return web.Response(body=header, content_type=BODY_TYPE)

    async def get_status(self, request: web.Request) -> web.StreamResponse:
        """Send the status as JSON."""
        return web.json_response(await run_in(self._executor, self._state.get_status))

    async def get_metrics(self, request: web.Request) -> web.StreamResponse:
        """Send the counters."""
        body = await run_in(self._executor, self._metrics.render, self._state)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})

    async def get_page(self, request: web.Request) -> web.StreamResponse:
        """Send the page for people."""
        return web.Response(
            text=render_page(await run_in(self._executor, self._state.get_status)), content_type="text/html"
        )

    async def _receive(self, request: web.Request, offer: ShardOffer, body: _Body) -> None:
        with self._admission.take_slot(_get_peer(request)), self._engine.upload(offer) as upload:
            sock = borrow_socket(request, offer.shard_bytes) if _is_waiting(request) else None
            if _is_waiting(request) and request.transport is not None:
                request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            body.is_asked = True
            if sock is not None:
                body.is_direct = True
                await self._receive_directly(request, sock, upload)
            else:
                async for chunk in self._iterate_body(request, offer.shard_bytes):
                    await run_in(self._executor, upload.write, chunk)
            await run_in(self._executor, self._engine.commit, upload)
        self._metrics.put_bytes.inc(offer.shard_bytes)

    async def _receive_directly(self, request: web.Request, sock: socket.socket, upload: Upload) -> None:
        timeout = self._body_timeout_seconds
        try:
            await run_cut(
                self._bodies, sock, lambda: receive_body(sock, upload, self._buffers, body_timeout_seconds=timeout)
            )
        finally:
            finish_borrowed(request, sock)

    async def _iterate_body(self, request: web.Request, expected: int) -> AsyncIterator[bytearray]:
        gathered = bytearray()
        pace = Pace(expected_bytes=expected)
        loop = asyncio.get_running_loop()
        while True:
            started = loop.time()
            try:
                async with asyncio.timeout(min(self._body_timeout_seconds, pace.compute_patience() / 1_000)):
                    chunk = await request.content.readany()
            except TimeoutError as error:
                pace.note(0, int((loop.time() - started) * 1_000) + 1)
                if loop.time() - started >= self._body_timeout_seconds:
                    raise UploadInterrupted(got=pace.received_bytes, expected=expected) from error
                continue
            except (aiohttp.ClientError, web.RequestPayloadError, ConnectionError) as error:
                raise UploadInterrupted(got=pace.received_bytes, expected=expected) from error
            pace.note(len(chunk), int((loop.time() - started) * 1_000))
            gathered += chunk
            if len(gathered) >= WRITE_BYTES or (not chunk and gathered):
                yield gathered
                gathered = bytearray()
            if not chunk:
                return

    @web.middleware
    async def _answer_refusals(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            with self.connections.use(request):
                return await handler(request)
        except StoreRefusal as error:
            return self._make_refusal(request, error)
        except ConnectionError:  # the client is gone; nothing failed here
            raise
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                return self._make_refusal(request, StoreBusy(what="open files", got=1, maximum=0))
            self._metrics.failures.inc()
            self._engine.health.note(error)
            if error.errno not in MEDIUM_ERRORS:
                raise
            return self._make_refusal(request, DiskFailed(reason=str(error)))

    def _make_refusal(self, request: web.Request, error: StoreRefusal) -> web.Response:
        status, answer = self._admission.describe(f"{request.method} {request.path}", error)
        response = web.Response(status=status, body=answer, content_type="application/json")
        if error.retry_after_seconds is not None:
            response.headers["Retry-After"] = str(error.retry_after_seconds)
        if isinstance(error, RangeNotSatisfiable):
            response.headers["Content-Range"] = f"bytes */{error.shard_bytes}"
        return response


def _get_peer(request: web.Request) -> str:
    """Return the address that an upload comes from."""
    return request.remote or "unknown"


def _is_waiting(request: web.Request) -> bool:
    """Tell whether the client sends its body only after a 100 Continue."""
    return request.headers.get("Expect", "").lower() == "100-continue"


async def _defer_continue(request: web.Request) -> None:
    """Send no 100 Continue yet: the body is asked for when there is room for it."""


def _read_put(request: web.Request) -> PutRequest:
    try:
        return decode_put(
            blob=request.match_info["blob"],
            seat=request.match_info["seat"],
            query=request.query,
            header=request.headers.get(BLOB_HEADER_FIELD),
        )
    except Malformed as error:
        raise MalformedRequest(str(error)) from error


def _decode_path(request: web.Request) -> tuple[BlobId, ShardIndex]:
    try:
        return decode_blob_id(request.match_info["blob"]), decode_seat(request.match_info["seat"])
    except Malformed as error:
        raise MalformedRequest(str(error)) from error


def _check_length(request: web.Request, put: PutRequest) -> None:
    expected = compute_shard_bytes(put.header.size_bytes, put.header.num_data)
    got = request.content_length
    if got is None:
        raise LengthRequired
    if got > expected:
        raise ShardTooLarge(got=got, maximum=expected)
    if got < expected:
        raise MalformedRequest(f"body of {got} bytes, the header's shards have {expected}")


def _make_answer(receipt: Receipt) -> web.Response:
    return web.Response(body=encode_receipt(receipt), content_type="application/json")
