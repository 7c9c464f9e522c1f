"""One call to one storage node: put a shard, get a shard, get a header (da/SPEC.md, *Node API*).

A node may be dead, slow, or lie. Invariant: whatever it does, a call ends by its deadline, reads no more bytes than
the right answer has, and either returns something verified or raises ``SeatFailed`` naming the seat and the reason.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor

import aiohttp
from aiohttp import payload
from aiohttp.abc import AbstractStreamWriter

from da.bulk import BULK_PORT_KEY, decode_json
from da.core.blob import BlobHeader, compute_blob_id, compute_shard_bytes, decode_header
from da.core.errors import FaultKind, MalformedHeader
from da.core.merkle import RootBuilder
from da.core.receipt import Receipt
from da.core.types import BlobId, ReceiptTerms, Seat
from da.protocol import (
    BODY_TYPE,
    CHUNK_BYTES,
    STATUS_PATH,
    BatchRequest,
    PutRequest,
    decode_refusal,
    encode_batch_path,
    encode_put,
    header_path,
    shard_path,
)
from da.seat_faults import check_receipt, check_signature, fail, guard
from da.shard_io import HashingWriter, Progress, ShardBody

MAX_ANSWER_BYTES = 8192
"""Receipts, headers (at most 3,600 bytes) and refusals are shorter; more is not read."""

MAX_STATUS_BYTES = 64 * 1024
"""Of a node's status; it is for people, and short."""

EXPECT_BYTES = 64 * 1024
"""From here on the node is asked before the body is sent, so that a refusal costs no bytes."""

MAX_RETRY_SECONDS = 5.0
"""Longest pause that a busy node is granted at once, whatever its Retry-After says."""


class _Payload(payload.Payload):
    """A request body made of pieces; copies nothing."""

    def __init__(self, body: ShardBody) -> None:
        super().__init__(body, content_type=BODY_TYPE)
        self._body = body
        self._size = body.num_bytes

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """Shards are not text."""
        raise TypeError("a shard is bytes, not text")

    async def write(self, writer: AbstractStreamWriter) -> None:
        """Write all pieces in chunks."""
        async for piece in self._body.open_pieces():
            for start in range(0, len(piece), CHUNK_BYTES):
                await writer.write(piece[start : start + CHUNK_BYTES])


class HttpStream:
    """A shard as it comes over HTTP, from some byte to its end."""

    def __init__(self, seat: Seat, response: aiohttp.ClientResponse, deadline_seconds: float) -> None:
        self._seat = seat
        self._response = response
        self._deadline_seconds = deadline_seconds
        self._rest = memoryview(b"")

    async def read_into(self, buffer: memoryview) -> None:
        """See ``ShardStream``."""
        at = 0
        async with guard(self._seat, self._deadline_seconds):
            while at < len(buffer):
                if not self._rest:
                    chunk = await self._response.content.readany()
                    if not chunk:
                        raise fail(self._seat, FaultKind.BAD_SHARD, "the shard ends too early")
                    self._rest = memoryview(chunk)
                part = self._rest[: len(buffer) - at]
                buffer[at : at + len(part)] = part
                self._rest = self._rest[len(part) :]
                at += len(part)

    def close(self) -> None:
        """See ``ShardStream``."""
        self._response.close()


async def send_shard(
    session: aiohttp.ClientSession,
    seat: Seat,
    request: PutRequest,
    body: ShardBody,
    *,
    terms: ReceiptTerms,
    deadline_seconds: float,
) -> Receipt:
    """Put a shard and return the seat's receipt, verified under ``terms``.

    A node that says 429 is asked again after its Retry-After, within the deadline.

    Raises:
        SeatFailed: no valid receipt; says why.
    """
    path, fields = encode_put(request)
    answer = await _put(session, seat, path, fields, body, deadline_seconds)
    return check_receipt(seat, answer, terms)


async def send_batch(
    session: aiohttp.ClientSession,
    seat: Seat,
    request: BatchRequest,
    body: ShardBody,
    *,
    message: bytes,
    deadline_seconds: float,
) -> Receipt:
    """Put the seat's shards of a batch and return its receipt, verified to be over ``message``; as ``send_shard``."""
    fields = {"Content-Type": BODY_TYPE}
    answer = await _put(session, seat, encode_batch_path(request), fields, body, deadline_seconds)
    return check_signature(seat, answer, message, f"this batch, epoch {request.epoch}")


async def _put(
    session: aiohttp.ClientSession,
    seat: Seat,
    path: str,
    fields: dict[str, str],
    body: ShardBody,
    deadline_seconds: float,
) -> bytes:
    said: list[str] = []
    async with guard(seat, deadline_seconds, said):
        while True:
            async with session.put(
                seat.url.rstrip("/") + path,
                data=_Payload(body),
                headers=fields,
                expect100=body.num_bytes >= EXPECT_BYTES,
                allow_redirects=False,
            ) as response:
                answer = await _read_answer(seat, response)
                if response.status == 429:
                    said[:] = [decode_refusal(response.status, answer)]
                    pause_seconds = _parse_retry_after(response.headers.get("Retry-After"))
                elif response.status == 200:
                    return answer
                else:
                    raise fail(seat, FaultKind.REFUSED, decode_refusal(response.status, answer))
            await asyncio.sleep(pause_seconds)


async def fetch_header(
    session: aiohttp.ClientSession, seat: Seat, blob: BlobId, *, deadline_seconds: float
) -> BlobHeader:
    """Get the header of ``blob`` and check it against the id.

    Raises:
        SeatFailed: no header, or not this blob's.
    """
    async with (
        guard(seat, deadline_seconds),
        session.get(seat.url.rstrip("/") + header_path(blob), allow_redirects=False) as response,
    ):
        answer = await _read_answer(seat, response)
        if response.status != 200:
            raise fail(seat, FaultKind.REFUSED, decode_refusal(response.status, answer))
        try:
            header = decode_header(answer)
        except MalformedHeader as error:
            raise fail(seat, FaultKind.BAD_HEADER, str(error)) from error
        if compute_blob_id(header) != blob:
            raise fail(
                seat, FaultKind.BAD_HEADER, f"header of blob {compute_blob_id(header).hex()}, asked for {blob.hex()}"
            )
        return header


async def fetch_shard(
    session: aiohttp.ClientSession,
    seat: Seat,
    blob: BlobId,
    header: BlobHeader,
    pieces: Sequence[memoryview],
    *,
    deadline_seconds: float,
    progress: Progress,
    threads: Executor,
) -> None:
    """Get the seat's shard into ``pieces``, hashing it while it comes, and check it against its root.

    When this returns or raises, nothing uses ``pieces`` any more.

    Raises:
        SeatFailed: no shard, or altered bytes.
    """
    num_bytes = compute_shard_bytes(header.size_bytes, header.num_data)
    async with (
        guard(seat, deadline_seconds),
        session.get(seat.url.rstrip("/") + shard_path(blob, seat.index), allow_redirects=False) as response,
    ):
        if response.status != 200:
            answer = await _read_answer(seat, response)
            raise fail(seat, FaultKind.REFUSED, decode_refusal(response.status, answer))
        writer = HashingWriter(pieces, RootBuilder(leaf_bytes=header.leaf_bytes), threads)
        try:
            async for chunk in response.content.iter_any():
                if progress.num_bytes + len(chunk) > num_bytes:
                    raise fail(seat, FaultKind.BAD_SHARD, f"more than the {num_bytes} bytes of the shard")
                await writer.write(chunk)
                progress.num_bytes += len(chunk)
            if progress.num_bytes != num_bytes:
                raise fail(seat, FaultKind.BAD_SHARD, f"{progress.num_bytes} bytes, expected {num_bytes}")
        finally:
            root = await writer.finish()
        expected = header.shard_roots[seat.index]
        if root != expected:
            raise fail(seat, FaultKind.BAD_SHARD, f"bytes hash to root {root.hex()}, expected {expected.hex()}")


async def open_stream(
    session: aiohttp.ClientSession, seat: Seat, blob: BlobId, *, start: int, deadline_seconds: float
) -> HttpStream:
    """Ask for the seat's shard from byte ``start`` on; each later read has ``deadline_seconds``.

    Raises:
        SeatFailed: the node does not give it.
    """
    async with guard(seat, deadline_seconds):
        response = await session.get(
            seat.url.rstrip("/") + shard_path(blob, seat.index),
            headers={"Range": f"bytes={start}-"} if start else {},
            allow_redirects=False,
        )
        try:
            if response.status != (206 if start else 200):
                answer = await _read_answer(seat, response)
                raise fail(seat, FaultKind.REFUSED, decode_refusal(response.status, answer))
        except BaseException:
            response.close()
            raise
        return HttpStream(seat, response, deadline_seconds)


async def fetch_bulk_port(session: aiohttp.ClientSession, seat: Seat, *, deadline_seconds: float) -> int | None:
    """Ask the node's status for its bulk port; None when it has none.

    Raises:
        SeatFailed: it does not say.
    """
    async with (
        guard(seat, deadline_seconds),
        session.get(seat.url.rstrip("/") + STATUS_PATH, allow_redirects=False) as response,
    ):
        port = decode_json(await _read_answer(seat, response, MAX_STATUS_BYTES)).get(BULK_PORT_KEY)
        return port if type(port) is int and 0 < port < 65536 else None


async def _read_answer(seat: Seat, response: aiohttp.ClientResponse, maximum: int = MAX_ANSWER_BYTES) -> bytes:
    answer = bytearray()
    async for chunk in response.content.iter_any():
        answer += chunk
        if len(answer) > maximum:
            raise fail(seat, FaultKind.REFUSED, f"{response.status} with more than {maximum} bytes")
    return bytes(answer)


def _parse_retry_after(text: str | None) -> float:
    if text is not None and text.isascii() and text.isdigit():
        return min(float(text), MAX_RETRY_SECONDS)
    return 1.0
