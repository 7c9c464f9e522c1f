"""One call to one storage node: put a shard, get a shard, get a header (da/SPEC.md, *Node API*).

A node may be dead, slow, or lie. Invariant: whatever it does, a call ends by its deadline, reads no more bytes than
the right answer has, and either returns something verified or raises ``SeatFailed`` naming the seat and the reason.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp
from aiohttp import payload
from aiohttp.abc import AbstractStreamWriter

from da.core.blob import BlobHeader, compute_blob_id, compute_shard_bytes, decode_header
from da.core.errors import FaultKind, MalformedHeader, MalformedReceipt, SeatFailed, SeatFault
from da.core.merkle import RootBuilder
from da.core.receipt import Receipt, is_receipt_valid
from da.core.types import BlobId, ReceiptTerms, Seat
from da.memory import allocate
from da.protocol import (
    BODY_TYPE,
    CHUNK_BYTES,
    PutRequest,
    decode_receipt,
    decode_refusal,
    encode_put,
    header_path,
    shard_path,
)

MAX_ANSWER_BYTES = 8192
"""Receipts, headers (at most 3,600 bytes) and refusals are shorter; more is not read."""

EXPECT_BYTES = 64 * 1024
"""From here on the node is asked before the body is sent, so that a refusal costs no bytes."""

MAX_RETRY_SECONDS = 5.0
"""Longest pause that a busy node is granted at once, whatever its Retry-After says."""


@dataclass(slots=True)
class Progress:
    """How far a fetch has come; the caller may look while it runs."""

    num_bytes: int = 0
    """Bytes received so far."""


class ShardBody(payload.Payload):
    """A request body made of pieces in memory; can be sent again, and copies nothing."""

    def __init__(self, pieces: Sequence[memoryview]) -> None:
        super().__init__(pieces, content_type=BODY_TYPE)
        self._pieces = pieces
        self._size = sum(len(piece) for piece in pieces)

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """Shards are not text."""
        raise TypeError("a shard is bytes, not text")

    async def write(self, writer: AbstractStreamWriter) -> None:
        """Write all pieces in chunks."""
        for piece in self._pieces:
            for start in range(0, len(piece), CHUNK_BYTES):
                await writer.write(piece[start : start + CHUNK_BYTES])


async def send_shard(
    session: aiohttp.ClientSession,
    seat: Seat,
    request: PutRequest,
    pieces: Sequence[memoryview],
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
    body = ShardBody(pieces)
    async with _guard(seat, deadline_seconds):
        while True:
            async with session.put(
                seat.url.rstrip("/") + path,
                data=body,
                headers=fields,
                expect100=(body.size or 0) >= EXPECT_BYTES,
                allow_redirects=False,
            ) as response:
                answer = await _read_answer(seat, response)
                if response.status == 429:
                    pause_seconds = _parse_retry_after(response.headers.get("Retry-After"))
                elif response.status == 200:
                    return _check_receipt(seat, answer, terms)
                else:
                    raise _fail(seat, FaultKind.REFUSED, decode_refusal(response.status, answer))
            await asyncio.sleep(pause_seconds)


async def fetch_header(
    session: aiohttp.ClientSession, seat: Seat, blob: BlobId, *, deadline_seconds: float
) -> BlobHeader:
    """Get the header of ``blob`` and check it against the id.

    Raises:
        SeatFailed: no header, or not this blob's.
    """
    async with (
        _guard(seat, deadline_seconds),
        session.get(seat.url.rstrip("/") + header_path(blob), allow_redirects=False) as response,
    ):
        answer = await _read_answer(seat, response)
        if response.status != 200:
            raise _fail(seat, FaultKind.REFUSED, decode_refusal(response.status, answer))
        try:
            header = decode_header(answer)
        except MalformedHeader as error:
            raise _fail(seat, FaultKind.BAD_HEADER, str(error)) from error
        if compute_blob_id(header) != blob:
            raise _fail(
                seat, FaultKind.BAD_HEADER, f"header of blob {compute_blob_id(header).hex()}, asked for {blob.hex()}"
            )
        return header


async def fetch_shard(
    session: aiohttp.ClientSession,
    seat: Seat,
    blob: BlobId,
    header: BlobHeader,
    *,
    deadline_seconds: float,
    progress: Progress,
) -> memoryview:
    """Get the seat's shard, hashing it while it comes, and check it against its root.

    Raises:
        SeatFailed: no shard, or altered bytes.
    """
    num_bytes = compute_shard_bytes(header.size_bytes, header.num_data)
    async with (
        _guard(seat, deadline_seconds),
        session.get(seat.url.rstrip("/") + shard_path(blob, seat.index), allow_redirects=False) as response,
    ):
        if response.status != 200:
            answer = await _read_answer(seat, response)
            raise _fail(seat, FaultKind.REFUSED, decode_refusal(response.status, answer))
        shard = allocate(num_bytes)
        builder = RootBuilder(leaf_bytes=header.leaf_bytes)
        async for chunk in response.content.iter_any():
            start = progress.num_bytes
            if start + len(chunk) > num_bytes:
                raise _fail(seat, FaultKind.BAD_SHARD, f"more than the {num_bytes} bytes of the shard")
            shard[start : start + len(chunk)] = chunk
            builder.update(chunk)
            progress.num_bytes = start + len(chunk)
        if progress.num_bytes != num_bytes:
            raise _fail(seat, FaultKind.BAD_SHARD, f"{progress.num_bytes} bytes, expected {num_bytes}")
        root = builder.finish()
        expected = header.shard_roots[seat.index]
        if root != expected:
            raise _fail(seat, FaultKind.BAD_SHARD, f"bytes hash to root {root.hex()}, expected {expected.hex()}")
        return shard


@asynccontextmanager
async def _guard(seat: Seat, deadline_seconds: float) -> AsyncIterator[None]:
    """Turn everything that sockets and HTTP can throw into ``SeatFailed``."""
    try:
        async with asyncio.timeout(deadline_seconds):
            yield
    except TimeoutError as error:
        raise _fail(seat, FaultKind.TIMEOUT, f"no complete answer within {deadline_seconds:.1f} s") from error
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise _fail(seat, FaultKind.UNREACHABLE, f"{type(error).__name__}: {error}"[:300]) from error


async def _read_answer(seat: Seat, response: aiohttp.ClientResponse) -> bytes:
    answer = bytearray()
    async for chunk in response.content.iter_any():
        answer += chunk
        if len(answer) > MAX_ANSWER_BYTES:
            raise _fail(seat, FaultKind.REFUSED, f"{response.status} with more than {MAX_ANSWER_BYTES} bytes")
    return bytes(answer)


def _check_receipt(seat: Seat, answer: bytes, terms: ReceiptTerms) -> Receipt:
    try:
        receipt = decode_receipt(answer)
    except MalformedReceipt as error:
        raise _fail(seat, FaultKind.BAD_RECEIPT, str(error)) from error
    if receipt.seat != seat.index:
        raise _fail(seat, FaultKind.BAD_RECEIPT, f"receipt of seat {receipt.seat}, expected {seat.index}")
    if receipt.key != seat.key:
        raise _fail(seat, FaultKind.BAD_RECEIPT, f"receipt of key {receipt.key.hex()}, expected {seat.key.hex()}")
    if not is_receipt_valid(receipt, terms, key=seat.key):
        raise _fail(
            seat,
            FaultKind.BAD_RECEIPT,
            f"signature does not verify for epoch {terms.epoch}, tier {int(terms.tier)}, expiry {terms.expiry}, "
            f"genesis {terms.genesis_hash.hex()}; is the node on this chain?",
        )
    return receipt


def _parse_retry_after(text: str | None) -> float:
    if text is not None and text.isascii() and text.isdigit():
        return min(float(text), MAX_RETRY_SECONDS)
    return 1.0


def _fail(seat: Seat, kind: FaultKind, reason: str) -> SeatFailed:
    return SeatFailed(SeatFault(seat=seat.index, url=seat.url, kind=kind, reason=reason))
