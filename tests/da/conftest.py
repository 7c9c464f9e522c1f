"""Committees of small in-test nodes: honest by default, dead, slow or lying on request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import pytest
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from da.batch import decode_batch
from da.codec import compute_shard_root
from da.core.blob import BlobHeader, encode_header
from da.core.errors import BadEncoding
from da.core.types import Committee, Epoch, Height, ReceiptTerms, Seat, ShardIndex, Tier
from da.folding import EncodingCheck
from da.protocol import (
    BATCH_ROUTE,
    BLOB_HEADER_FIELD,
    HEADER_ROUTE,
    SHARD_ROUTE,
    PutRequest,
    Refusal,
    decode_batch_path,
    decode_put,
    encode_receipt,
    encode_refusal,
)
from da.signing import get_public_key, sign_batch, sign_receipt

GENESIS = bytes(range(32))
EPOCH = Epoch(7)
EXPIRY = Height(1000)


def make_key(index: int) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(bytes([index + 1]) * 32)


def make_committee(num_seats: int, urls: list[str] | None = None, epoch: Epoch = EPOCH) -> Committee:
    return Committee(
        epoch=epoch,
        seats=tuple(
            Seat(
                index=ShardIndex(index),
                key=get_public_key(make_key(index)),
                url=urls[index] if urls else f"http://127.0.0.1:{index}",
            )
            for index in range(num_seats)
        ),
    )


@dataclass
class FakeNode:
    """A storage node in memory; ``put_fault`` and ``get_fault`` replace its handlers."""

    index: int
    genesis: bytes = GENESIS
    shards: dict[str, bytes] = field(default_factory=dict)
    headers: dict[str, BlobHeader] = field(default_factory=dict)
    put_fault: Callable[[web.Request], Awaitable[web.StreamResponse | None]] | None = None
    get_fault: Callable[[web.Request], Awaitable[web.StreamResponse | None]] | None = None
    header_fault: Callable[[web.Request], Awaitable[web.StreamResponse | None]] | None = None
    num_body_bytes: int = 0
    num_gets: int = 0
    num_batches: int = 0
    url: str = ""

    def make_app(self) -> web.Application:
        app = web.Application(client_max_size=2**30)
        app.router.add_put(SHARD_ROUTE, self._put, expect_handler=self._expect)
        app.router.add_get(SHARD_ROUTE, self._get)
        app.router.add_put(BATCH_ROUTE, self._put_batch)
        app.router.add_get(HEADER_ROUTE, self._get_header)
        return app

    def sign(self, request: PutRequest) -> bytes:
        return encode_receipt(sign_receipt(make_key(self.index), request.terms(self.genesis), request.seat))

    def decode(self, request: web.Request) -> PutRequest:
        return decode_put(
            blob=request.match_info["blob"],
            seat=request.match_info["seat"],
            query=request.query,
            header=request.headers.get(BLOB_HEADER_FIELD),
        )

    async def _expect(self, request: web.Request) -> web.StreamResponse | None:
        if self.put_fault is not None and (answer := await self.put_fault(request)) is not None:
            return answer
        put = self.decode(request)
        if put.blob.hex() in self.shards:
            return web.Response(body=self.sign(put), content_type="application/json")
        if request.transport is not None:
            request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return None

    async def _put(self, request: web.Request) -> web.StreamResponse:
        is_asked_before = "Expect" in request.headers
        if not is_asked_before and self.put_fault is not None:
            answer = await self.put_fault(request)
            if answer is not None:
                return answer
        put = self.decode(request)
        body = await request.read()
        self.num_body_bytes += len(body)
        if compute_shard_root(body, leaf_bytes=put.header.leaf_bytes) != put.header.shard_roots[put.seat]:
            return refuse(422, Refusal.ROOT_MISMATCH, "root")
        encoding = EncodingCheck(put.header, put.seat)
        encoding.update(body)
        try:
            encoding.finish()
        except BadEncoding as error:
            return refuse(422, Refusal.BAD_ENCODING, str(error))
        self.shards[put.blob.hex()] = body
        self.headers[put.blob.hex()] = put.header
        return web.Response(body=self.sign(put), content_type="application/json")

    async def _put_batch(self, request: web.Request) -> web.StreamResponse:
        if self.put_fault is not None and (answer := await self.put_fault(request)) is not None:
            return answer
        batch = decode_batch_path(seat=request.match_info["seat"], query=request.query)
        entries = decode_batch(await request.read())
        for entry in entries:
            root = compute_shard_root(entry.shard, leaf_bytes=entry.header.leaf_bytes)
            if root != entry.header.shard_roots[self.index]:
                return refuse(422, Refusal.ROOT_MISMATCH, entry.blob.hex())
        for entry in entries:
            self.shards[entry.blob.hex()] = bytes(entry.shard)
            self.headers[entry.blob.hex()] = entry.header
        terms = [batch.terms(self.genesis, entry.blob, entry.header.size_bytes) for entry in entries]
        self.num_batches += 1
        receipt = sign_batch(make_key(self.index), terms, batch.seat)
        return web.Response(body=encode_receipt(receipt), content_type="application/json")

    async def _get(self, request: web.Request) -> web.StreamResponse:
        self.num_gets += 1
        if self.get_fault is not None and (answer := await self.get_fault(request)) is not None:
            return answer
        shard = self.shards.get(request.match_info["blob"])
        if shard is None or request.match_info["seat"] != str(self.index):
            return refuse(404, Refusal.UNKNOWN_BLOB, "not here")
        if "Range" in request.headers:
            start = int(request.headers["Range"].removeprefix("bytes=").removesuffix("-"))
            return web.Response(status=206, body=shard[start:])
        return web.Response(body=shard)

    async def _get_header(self, request: web.Request) -> web.StreamResponse:
        if self.header_fault is not None and (answer := await self.header_fault(request)) is not None:
            return answer
        header = self.headers.get(request.match_info["blob"])
        if header is None:
            return refuse(404, Refusal.UNKNOWN_BLOB, "not here")
        return web.Response(body=encode_header(header))


def refuse(status: int, refusal: Refusal, message: str, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(
        status=status, body=encode_refusal(refusal, message), content_type="application/json", headers=headers
    )


async def hang(_: web.Request) -> web.StreamResponse | None:
    await asyncio.Event().wait()
    return None


@dataclass
class FakeCommittee:
    """Nodes and the committee that names them; a dead node's port is closed."""

    nodes: list[FakeNode]
    committee: Committee
    runners: list[web.AppRunner]

    async def kill(self, index: int) -> None:
        await self.runners[index].cleanup()


@asynccontextmanager
async def run_nodes(num_seats: int) -> AsyncIterator[FakeCommittee]:
    async with AsyncExitStack() as stack:
        nodes, runners = [FakeNode(index) for index in range(num_seats)], []
        for node in nodes:
            runner = web.AppRunner(node.make_app(), shutdown_timeout=0.1, access_log=None)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            host, port = runner.addresses[0][:2]
            node.url = f"http://{host}:{port}"
            runners.append(runner)
        yield FakeCommittee(nodes, make_committee(num_seats, [node.url for node in nodes]), runners)


class Fakes:
    """What tests need of this file; a fixture, since test directories are no packages."""

    GENESIS = GENESIS
    EPOCH = EPOCH
    EXPIRY = EXPIRY
    make_key = staticmethod(make_key)
    make_committee = staticmethod(make_committee)
    make_terms = staticmethod(lambda **changes: make_terms(**changes))
    run_nodes = staticmethod(run_nodes)
    refuse = staticmethod(refuse)
    hang = staticmethod(hang)


@pytest.fixture(scope="session")
def fakes() -> type[Fakes]:
    """Keys, committees, terms and nodes."""
    return Fakes


@pytest.fixture
async def four() -> AsyncIterator[FakeCommittee]:
    """Four honest nodes: k = 2, s = 3."""
    async with run_nodes(4) as nodes:
        yield nodes


def make_terms(**changes: object) -> ReceiptTerms:
    values: dict[str, object] = {
        "genesis_hash": GENESIS,
        "epoch": EPOCH,
        "blob": bytes(32),
        "size_bytes": 10,
        "tier": Tier.TEMPORARY,
        "expiry": EXPIRY,
    }
    return ReceiptTerms(**(values | changes))  # type: ignore[arg-type]
