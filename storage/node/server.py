"""The HTTP API of a node (da/protocol.py, SPEC.md 5): checks, streams and signs; the engine does the rest.

Order of a PUT: request -> tier -> length -> committee and seat -> expiry -> room -> body -> durable -> signature.
Nothing of the body is read before there is room for all of it.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

import aiohttp
from aiohttp import web

from da.core.blob import check_has_folds, compute_shard_bytes, encode_header
from da.core.errors import FoldsMissing, Malformed
from da.core.scheme import compute_scheme
from da.core.types import BlobId, Committee, ShardIndex
from da.protocol import (
    BLOB_HEADER_FIELD,
    BODY_TYPE,
    HEADER_ROUTE,
    METRICS_PATH,
    SHARD_ROUTE,
    STATUS_OF_REFUSAL,
    STATUS_PATH,
    PutRequest,
    Refusal,
    decode_blob_id,
    decode_put,
    decode_seat,
    encode_receipt,
    encode_refusal,
)
from storage.core.errors import (
    BadlyEncoded,
    BlobExpired,
    ChainNotKnown,
    DiskFull,
    IndexFull,
    LengthRequired,
    MalformedRequest,
    NotMySeat,
    QuotaExceeded,
    RangeNotSatisfiable,
    RootMismatch,
    ShardTooLarge,
    StoreBusy,
    StoreRefusal,
    TierUnavailable,
    UnknownShard,
    UploadInterrupted,
    WrongEpoch,
)
from storage.core.ranges import parse_range
from storage.core.tiers import get_served_policy
from storage.node.engine import ShardOffer, StoreEngine
from storage.node.metrics import CONTENT_TYPE, Metrics
from storage.node.page import render_page
from storage.node.status import NodeState
from storage.node.trace import Trace
from storage.node.watch import ChainWatch, check_seat

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

WRITE_BYTES = 512 * 1024
"""Bytes gathered before a thread hashes and writes them: large enough to hide the hand-over."""

READ_BYTES = 1 << 20
"""Bytes read from disk in one go for a GET."""

SOCKET_BYTES = 1 << 20
"""Bytes that aiohttp buffers of a body."""

_REFUSALS: Mapping[type[StoreRefusal], Refusal] = {
    MalformedRequest: Refusal.MALFORMED,
    LengthRequired: Refusal.MALFORMED,
    TierUnavailable: Refusal.MALFORMED,
    WrongEpoch: Refusal.NOT_MY_SEAT,
    NotMySeat: Refusal.NOT_MY_SEAT,
    ChainNotKnown: Refusal.BUSY,
    UnknownShard: Refusal.UNKNOWN_BLOB,
    BlobExpired: Refusal.EXPIRED,
    RangeNotSatisfiable: Refusal.MALFORMED,
    ShardTooLarge: Refusal.TOO_LARGE,
    RootMismatch: Refusal.ROOT_MISMATCH,
    BadlyEncoded: Refusal.BAD_ENCODING,
    StoreBusy: Refusal.BUSY,
    UploadInterrupted: Refusal.BUSY,
    QuotaExceeded: Refusal.FULL,
    DiskFull: Refusal.FULL,
    IndexFull: Refusal.FULL,
}
"""What a client is told; da's client knows these few words."""

_STATUS: Mapping[type[StoreRefusal], int] = {LengthRequired: 411, RangeNotSatisfiable: 416}
"""Where HTTP has a more exact status than the API's."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(slots=True)
class _Body:
    """Whether a request's body was asked for."""

    is_asked: bool = False


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
    ) -> None:
        """Serve ``state``'s engine; blocking work runs in ``executor``."""
        self._state = state
        self._engine: StoreEngine = state.engine
        self._watch: ChainWatch = state.watch
        self._executor = executor
        self._trace = trace
        self._max_uploads = max_uploads
        self._body_timeout_seconds = body_timeout_seconds
        self._num_uploads = 0
        self._metrics = Metrics()

    def make_app(self) -> web.Application:
        """Return the application."""
        app = web.Application(middlewares=[self._answer_refusals])
        app.router.add_put(SHARD_ROUTE, self.put_shard, expect_handler=_defer_continue)
        app.router.add_get(SHARD_ROUTE, self.get_shard)
        app.router.add_get(HEADER_ROUTE, self.get_header)
        app.router.add_get(STATUS_PATH, self.get_status)
        app.router.add_get(METRICS_PATH, self.get_metrics)
        app.router.add_get("/", self.get_page)
        return app

    async def put_shard(self, request: web.Request) -> web.StreamResponse:
        """Keep a shard and answer with a receipt."""
        body = _Body()
        try:
            response = await self._put(request, body)
        except StoreRefusal as error:
            response = self._make_refusal(request, error)
        if _is_waiting(request) and not body.is_asked:
            # The client was answered before it was asked for its body, which may still come, or not.
            response.force_close()
        return response

    async def _put(self, request: web.Request, body: _Body) -> web.Response:
        put = _read_put(request)
        policy = get_served_policy(put.tier)
        shard_bytes = _check_length(request, put)
        view, committee = await self._watch.get_committee(put.epoch)
        _check_scheme(put, committee)
        check_seat(committee, put.seat, self._state.key.public)
        if put.expiry <= view.height:
            raise BlobExpired(expiry=put.expiry, height=view.height)
        if put.expiry > view.height + policy.max_lifetime_blocks:
            raise MalformedRequest(
                f"expiry {put.expiry} is more than {policy.max_lifetime_blocks} blocks after height {view.height}, "
                f"the longest that tier {policy.tier.name.lower()} is kept"
            )
        offer = ShardOffer(
            blob=put.blob,
            shard=put.seat,
            header=put.header,
            header_bytes=encode_header(put.header),
            shard_bytes=shard_bytes,
            tier=put.tier,
            epoch=put.epoch,
            expiry=put.expiry,
        )
        if not await self._run(self._engine.renew, offer):
            await self._receive(request, offer, body)
        receipt = self._state.key.sign_receipt(put.terms(view.genesis_hash), put.seat)
        self._trace.record("signed", blob=put.blob.hex(), shard=put.seat, tier=put.tier.name.lower())
        self._metrics.puts.labels(put.tier.name.lower()).inc()
        return web.Response(body=encode_receipt(receipt), content_type="application/json")

    async def get_shard(self, request: web.Request) -> web.StreamResponse:
        """Send a shard, or the one range that was asked for."""
        blob, shard = _decode_path(request)
        record = await self._run(self._engine.get_record, blob, shard)
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
        try:
            fd = await self._run(os.open, self._engine.disk.get_body_path(blob, shard), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise UnknownShard(blob=blob, shard=shard) from error
        try:
            await response.prepare(request)
            while start < stop:
                chunk = await self._run(os.pread, fd, min(READ_BYTES, stop - start), start)
                if not chunk:
                    raise OSError(f"shard {shard} of blob {blob.hex()} ends at byte {start}, expected {stop}")
                await response.write(chunk)
                start += len(chunk)
                self._metrics.get_bytes.inc(len(chunk))
        finally:
            os.close(fd)
        await response.write_eof()
        return response

    async def get_header(self, request: web.Request) -> web.StreamResponse:
        """Send a blob's encoded header."""
        try:
            blob = decode_blob_id(request.match_info["blob"])
        except Malformed as error:
            raise MalformedRequest(str(error)) from error
        header = await self._run(self._engine.get_header, blob)
        return web.Response(body=header, content_type=BODY_TYPE)

    async def get_status(self, request: web.Request) -> web.StreamResponse:
        """Send the status as JSON."""
        return web.json_response(await self._run(self._state.get_status))

    async def get_metrics(self, request: web.Request) -> web.StreamResponse:
        """Send the counters."""
        body = await self._run(self._metrics.render, self._state)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})

    async def get_page(self, request: web.Request) -> web.StreamResponse:
        """Send the page for people."""
        return web.Response(text=render_page(await self._run(self._state.get_status)), content_type="text/html")

    async def _receive(self, request: web.Request, offer: ShardOffer, body: _Body) -> None:
        if self._num_uploads >= self._max_uploads:
            raise StoreBusy(what="uploads under way", got=self._num_uploads + 1, maximum=self._max_uploads)
        self._num_uploads += 1
        try:
            with self._engine.upload(offer) as upload:
                if _is_waiting(request) and request.transport is not None:
                    request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                body.is_asked = True
                async for chunk in self._iterate_body(request, offer.shard_bytes):
                    await self._run(upload.write, chunk)
                await self._run(self._engine.commit, upload)
        finally:
            self._num_uploads -= 1
        self._metrics.put_bytes.inc(offer.shard_bytes)

    async def _iterate_body(self, request: web.Request, expected: int) -> AsyncIterator[bytearray]:
        gathered = bytearray()
        received = 0
        while True:
            try:
                async with asyncio.timeout(self._body_timeout_seconds):
                    chunk = await request.content.readany()
            except (aiohttp.ClientError, web.RequestPayloadError, ConnectionError, TimeoutError) as error:
                raise UploadInterrupted(got=received, expected=expected) from error
            received += len(chunk)
            gathered += chunk
            if len(gathered) >= WRITE_BYTES or (not chunk and gathered):
                yield gathered
                gathered = bytearray()
            if not chunk:
                return

    async def _run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run blocking work in a thread and wait for its end, even when the request is cancelled meanwhile."""
        future = asyncio.get_running_loop().run_in_executor(self._executor, lambda: function(*args, **kwargs))
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            await asyncio.wait([future])
            raise

    @web.middleware
    async def _answer_refusals(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except StoreRefusal as error:
            return self._make_refusal(request, error)
        except OSError:
            self._metrics.failures.inc()
            raise

    def _make_refusal(self, request: web.Request, error: StoreRefusal) -> web.Response:
        refusal = _REFUSALS[type(error)]
        self._metrics.refusals.labels(type(error).__name__).inc()
        log.info("%s %s refused: %s", request.method, request.path, error)
        response = web.Response(
            status=_STATUS.get(type(error), STATUS_OF_REFUSAL[refusal]),
            body=encode_refusal(refusal, str(error)),
            content_type="application/json",
        )
        if error.retry_after_seconds is not None:
            response.headers["Retry-After"] = str(error.retry_after_seconds)
        if isinstance(error, RangeNotSatisfiable):
            response.headers["Content-Range"] = f"bytes */{error.shard_bytes}"
        return response


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


def _check_length(request: web.Request, put: PutRequest) -> int:
    expected = compute_shard_bytes(put.header.size_bytes, put.header.num_data)
    got = request.content_length
    if got is None:
        raise LengthRequired
    if got > expected:
        raise ShardTooLarge(got=got, maximum=expected)
    if got < expected:
        raise MalformedRequest(f"body of {got} bytes, the header's shards have {expected}")
    return expected


def _check_scheme(put: PutRequest, committee: Committee) -> None:
    scheme = compute_scheme(len(committee.seats))
    got = (put.header.num_data, put.header.num_shards)
    if got != (scheme.num_data, scheme.num_shards):
        raise MalformedRequest(
            f"blob coded {got[0]} of {got[1]}, epoch {committee.epoch} with {len(committee.seats)} seats uses "
            f"{scheme.num_data} of {scheme.num_shards}"
        )
    try:
        check_has_folds(put.header)
    except FoldsMissing as error:
        raise BadlyEncoded(str(error)) from error
