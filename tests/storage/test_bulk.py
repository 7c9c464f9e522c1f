"""The bulk port: the same checks and receipts as over HTTP, and nothing left of what went wrong."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import random
import socket
import struct
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from da import links, node_calls
from da.bulk import (
    ANSWER_PREFIX_BYTES,
    MAGIC,
    GetRequest,
    decode_answer_prefix,
    decode_json,
    decode_request,
    encode_get_frame,
    encode_put_frame,
)
from da.client import AsyncBlobClient
from da.core.errors import FaultKind, Malformed, NotEnoughShards
from da.core.types import BlobId, Committee, Epoch, Height, Seat, ShardIndex, Tier
from da.protocol import PutRequest
from da.slabs import FileSource
from storage.node.body import FileReader

GENESIS_HASH = bytes(range(32))
DATA = random.Random(2).randbytes(3_000_000)


@pytest.fixture
def serve_bulk(serve: Callable[..., Any]) -> Callable[..., Any]:
    """Serve one node with its bulk port; gives the node and the committee of its only seat."""

    @asynccontextmanager
    async def run(**options: Any) -> AsyncIterator[tuple[Any, Committee]]:
        async with serve(**options) as node:
            bulk = node.server.make_bulk()
            node.state.bulk_port = await bulk.start("127.0.0.1")
            try:
                seat = Seat(index=ShardIndex(0), key=node.key.public, url=node.url)
                yield node, Committee(epoch=Epoch(1), seats=(seat,))
            finally:
                await bulk.close()

    return run


async def disperse(client: AsyncBlobClient, committee: Committee, data: bytes = DATA, tier: Tier = Tier.HOT) -> Any:
    return await client.disperse(
        data, committee=committee, genesis_hash=GENESIS_HASH, tier=tier, expiry=Height(1000), leaf_bytes=1024
    )


class Wire:
    """A client that says what it likes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def ask(self, data: bytes) -> tuple[int, dict[str, object], int]:
        self.writer.write(data)
        return await self.read_answer()

    async def read_answer(self) -> tuple[int, dict[str, object], int]:
        async with asyncio.timeout(5):
            answer = decode_answer_prefix(await self.reader.readexactly(ANSWER_PREFIX_BYTES))
            return answer.status, decode_json(await self.reader.readexactly(answer.json_bytes)), answer.body_bytes

    async def is_closed(self) -> bool:
        async with asyncio.timeout(5):
            try:
                return await self.reader.read(1) == b""
            except ConnectionResetError:  # it had not read everything
                return True


@asynccontextmanager
async def dial(node: Any) -> AsyncIterator[Wire]:
    reader, writer = await asyncio.open_connection("127.0.0.1", node.state.bulk_port)
    try:
        yield Wire(reader, writer)
    finally:
        writer.close()


def make_put(shard: Any) -> PutRequest:
    offer = shard.offer
    return PutRequest(
        blob=offer.blob,
        seat=offer.shard,
        epoch=offer.epoch,
        tier=offer.tier,
        expiry=offer.expiry,
        header=offer.header,
    )


async def test_round_trip_takes_the_bulk_port(serve_bulk: Any) -> None:
    async with serve_bulk() as (node, committee), AsyncBlobClient(deadline_seconds=5) as client:
        with mock.patch.object(node_calls, "send_shard"), mock.patch.object(node_calls, "fetch_shard"):
            dispersal = await disperse(client, committee)
            blob = dispersal.certificate.terms.blob
            for _ in range(2):
                retrieved = await client.retrieve(blob, committee=committee, max_bytes=len(DATA))
                assert retrieved.data == DATA
        assert client.traffic.bytes_sent > len(DATA)
        assert client.traffic.bytes_received > 2 * len(DATA)
        events = [event["event"] for event in node.trace.get_events()]
        assert events == ["admitted", "received", "synced", "renamed", "indexed", "signed"]


async def test_small_shards_and_nodes_without_the_port_take_http(serve_bulk: Any) -> None:
    async with serve_bulk() as (node, committee), AsyncBlobClient(deadline_seconds=5) as client:
        with mock.patch("da.bulk_calls.send_shard", side_effect=AssertionError):
            await disperse(client, committee, DATA[: links.BULK_MIN_BYTES - 1])
            node.state.bulk_port = None
            await disperse(client, committee)


async def test_a_port_that_does_not_answer_is_passed_by(serve_bulk: Any) -> None:
    async with serve_bulk() as (node, committee), AsyncBlobClient(deadline_seconds=5) as client:
        node.state.bulk_port = 1  # nobody listens there
        dispersal = await disperse(client, committee)
        assert dispersal.faults == ()


@asynccontextmanager
async def cut_bulk(node: Any, after_bytes: int) -> AsyncIterator[list[int]]:
    """Put something between that resets each bulk connection after so many bytes in all; gives their number."""
    own_port, cuts = node.state.bulk_port, [0]

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        other_reader, other_writer = await asyncio.open_connection("127.0.0.1", own_port)
        seen = 0

        async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
            nonlocal seen
            while seen < after_bytes and (data := await source.read(65536)):
                seen += len(data)
                target.write(data)
                await target.drain()

        copies = [asyncio.create_task(copy(reader, other_writer)), asyncio.create_task(copy(other_reader, writer))]
        await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
        for task in copies:
            task.cancel()
        await asyncio.gather(*copies, return_exceptions=True)
        cuts[0] += 1
        for end in (writer, other_writer):
            end.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            end.transport.abort()

    server = await asyncio.start_server(pass_on, "127.0.0.1", 0)
    node.state.bulk_port = server.sockets[0].getsockname()[1]
    try:
        yield cuts
    finally:
        server.close()


@pytest.mark.parametrize("after_bytes", [0, 100, 1_500_000])
async def test_bulk_connections_that_are_reset_give_way_to_http(
    serve_bulk: Any, tmp_path: Path, after_bytes: int
) -> None:
    """At once, after the question, and in the middle of the bytes; no seat is at fault."""
    async with serve_bulk() as (node, committee), cut_bulk(node, after_bytes) as cuts:
        async with AsyncBlobClient(deadline_seconds=5) as client:
            dispersal = await disperse(client, committee)
            assert dispersal.faults == ()
            assert cuts == [1]
            await disperse(client, committee)
            assert cuts == [1], "HTTP is taken for a while"
        blob = dispersal.certificate.terms.blob
        async with AsyncBlobClient(deadline_seconds=5) as client:
            retrieved = await client.retrieve(blob, committee=committee, max_bytes=len(DATA))
            assert (retrieved.data, retrieved.report.faults, cuts) == (DATA, (), [2])
        async with AsyncBlobClient(deadline_seconds=5) as client:
            report = await client.retrieve_to_file(blob, tmp_path / "out", committee=committee, max_bytes=len(DATA))
            assert ((tmp_path / "out").read_bytes(), report.faults, cuts) == (DATA, (), [3])


async def test_a_stream_that_is_reset_in_the_middle_is_sent_once_more_over_http(
    serve_bulk: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("da.client.STRIPE_BYTES", 0)
    (tmp_path / "in").write_bytes(DATA)
    options: dict[str, Any] = {"genesis_hash": GENESIS_HASH, "tier": Tier.HOT, "expiry": Height(1000)}
    async with serve_bulk() as (node, committee), cut_bulk(node, 1_500_000) as cuts:
        async with AsyncBlobClient(deadline_seconds=5) as client:
            with FileSource(tmp_path / "in") as source:
                done = await client.disperse_stream(source, committee=committee, **options)
        assert (done.faults, cuts) == ((), [1])


async def test_a_node_that_has_the_shard_asks_for_no_body(serve_bulk: Any, make_shard: Any) -> None:
    shard = make_shard(b"x" * 5000)
    async with serve_bulk() as (node, _), dial(node) as wire:
        assert (await wire.ask(encode_put_frame(make_put(shard))))[0] == 100
        first = await wire.ask(shard.body)
        assert first[0] == 200
        assert await wire.ask(encode_put_frame(make_put(shard))) == first


async def test_invalid_body_is_refused_and_the_connection_goes_on(serve_bulk: Any, make_shard: Any) -> None:
    shard = make_shard(b"x" * 5000)
    async with serve_bulk() as (node, _), dial(node) as wire:
        await wire.ask(encode_put_frame(make_put(shard)))
        status, answer, _ = await wire.ask(b"y" * 5000)
        assert (status, answer["error"]) == (422, "RootMismatch")
        late = dataclasses.replace(make_put(shard), expiry=Height(1))
        assert (await wire.ask(encode_put_frame(late)))[0] == 410
        assert (await wire.ask(encode_put_frame(make_put(shard))))[0] == 100
        assert (await wire.ask(shard.body))[0] == 200
        quota = node.engine.get_quota()
        assert (quota.used_bytes, quota.reserved_bytes) == (12288, 0)


async def test_a_body_that_is_cut_or_stops_leaves_nothing(
    serve_bulk: Any, make_shard: Any, get_files: Any, tmp_path: Any, wait_until_async: Any
) -> None:
    shard = make_shard(b"x" * 5000)

    def is_clean() -> bool:
        return node.engine.get_quota().reserved_bytes == 0 and get_files(tmp_path / "served") == {}

    async with serve_bulk(body_timeout_seconds=0.3) as (node, _):
        async with dial(node) as wire:
            await wire.ask(encode_put_frame(make_put(shard)))
            wire.writer.write(shard.body[:100])
        await wait_until_async(is_clean, "the cut upload is gone")
        async with dial(node) as wire:
            await wire.ask(encode_put_frame(make_put(shard)))
            wire.writer.write(shard.body[:100])
            status, answer, _ = await wire.read_answer()  # nothing more comes: given up
            assert (status, answer["error"]) == (429, "Busy")
            assert await wire.is_closed()
        await wait_until_async(is_clean, "the stopped upload is gone")


async def test_ranges(serve_bulk: Any, make_shard: Any) -> None:
    shard = make_shard(bytes(range(250)))
    get = GetRequest(blob=shard.offer.blob, seat=ShardIndex(0), start=0, stop=None)
    async with serve_bulk() as (node, _), dial(node) as wire:
        status, answer, _ = await wire.ask(encode_get_frame(get))
        assert (status, answer["error"]) == (404, "UnknownBlob")
        await wire.ask(encode_put_frame(make_put(shard)))
        await wire.ask(shard.body)
        for start, stop in ((0, None), (10, 20), (250, None), (7, 7)):
            frame = encode_get_frame(dataclasses.replace(get, start=start, stop=stop))
            expected = shard.body[start:stop]
            assert await wire.ask(frame) == (200, {}, len(expected))
            assert await wire.reader.readexactly(len(expected)) == expected
        for start, stop in ((251, None), (0, 251), (20, 10)):
            status, _, _ = await wire.ask(encode_get_frame(dataclasses.replace(get, start=start, stop=stop)))
            assert status == 400


async def test_a_medium_that_fails_under_a_mapped_page_ends_no_node(
    serve_bulk: Any, monkeypatch: pytest.MonkeyPatch, wait_until_async: Any
) -> None:
    """Its bytes go from the page to the socket, so the system says what it can't read."""
    real = FileReader.map

    def cut(reader: FileReader, start: int, num_bytes: int) -> memoryview:
        view = real(reader, start, num_bytes)
        os.truncate(path, 8192)  # a page of a file that ends before it fails like one of a medium that does not answer
        return view

    async with serve_bulk() as (node, committee), AsyncBlobClient(deadline_seconds=5) as client:
        blob = (await disperse(client, committee)).certificate.terms.blob
        path = node.engine.disk.get_body_path(blob, ShardIndex(0))
        monkeypatch.setattr(FileReader, "map", cut)
        with pytest.raises(NotEnoughShards):
            await client.retrieve(blob, committee=committee, max_bytes=len(DATA))
        await wait_until_async(lambda: node.engine.health.num_failures == 1, "the failure is noted")
        assert "could be read" in node.engine.health.last_failure
        path.write_bytes(DATA)
        monkeypatch.setattr(FileReader, "map", real)
        assert (await client.retrieve(blob, committee=committee, max_bytes=len(DATA))).data == DATA


async def test_altered_bytes_are_noticed(serve_bulk: Any) -> None:
    """Case 78, on the bulk port."""
    async with serve_bulk() as (node, committee), AsyncBlobClient(deadline_seconds=5) as client:
        blob = (await disperse(client, committee)).certificate.terms.blob
        path = node.engine.disk.get_body_path(blob, ShardIndex(0))
        path.write_bytes(DATA[:-1] + b"\xff")
        with pytest.raises(NotEnoughShards) as caught:
            await client.retrieve(blob, committee=committee, max_bytes=len(DATA))
        assert caught.value.faults[0].kind is FaultKind.BAD_SHARD


async def test_invalid_frames_end_a_connection_and_no_more(serve_bulk: Any, make_shard: Any) -> None:
    good = encode_put_frame(make_put(make_shard(b"x")))
    async with serve_bulk() as (node, _):
        for bad in (b"GET / HTTP/1.1\r\n", MAGIC + b"\xff" * 4, MAGIC + bytes(2)):
            async with dial(node) as wire:
                wire.writer.write(bad)
                with suppress(OSError):  # the node may have closed it already
                    wire.writer.write_eof()
                assert await wire.is_closed()
        async with dial(node) as wire:
            for text in (b"", b"[]", b"{}", b'{"call": "get"}', b'{"call": "put"}', b"\xff"):
                status, answer, _ = await wire.ask(MAGIC + len(text).to_bytes(4, "big") + text)
                assert (status, answer["error"]) == (400, "Malformed")
            assert (await wire.ask(good))[0] == 100


async def test_a_connection_for_which_there_is_no_thread_is_not_the_last(
    serve_bulk: Any, make_shard: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = encode_put_frame(make_put(make_shard(b"x")))
    real = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith("bulk"):
            raise RuntimeError("can't start new thread")
        real(thread)

    async with serve_bulk() as (node, _):
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refuse)
            async with dial(node) as wire:
                assert await wire.is_closed()
        async with dial(node) as wire:
            assert (await wire.ask(good))[0] == 100


@pytest.mark.parametrize("seed", range(20))
def test_decoding_requests_is_total(seed: int, make_shard: Any) -> None:
    """Fuzz: altered requests decode to something or raise Malformed."""
    rng = random.Random(seed)
    get = encode_get_frame(GetRequest(blob=BlobId(bytes(32)), seat=ShardIndex(1), start=5, stop=9))
    for frame in (encode_put_frame(make_put(make_shard(b"x" * 100))), get):
        for _ in range(40):
            body = bytearray(frame[8:])
            body[rng.randrange(len(body))] = rng.randrange(256)
            try:
                decode_request(bytes(body))
            except Malformed:
                continue
