"""Long bodies over HTTP are taken straight from the socket: nothing is lost, nothing is left, and the answer comes."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any
from unittest import mock
from urllib.parse import urlsplit

import pytest

from da.memory import BufferPool
from da.protocol import PutRequest, encode_put
from storage.core.errors import UploadInterrupted
from storage.node import receiving, server

BODY = bytes(range(256)) * 2_000
"""Longer than what is taken through the library."""


def make_request(shard: Any, *, is_waiting: bool = True) -> bytes:
    offer = shard.offer
    path, fields = encode_put(
        PutRequest(
            blob=offer.blob,
            seat=offer.shard,
            epoch=offer.epoch,
            tier=offer.tier,
            expiry=offer.expiry,
            header=offer.header,
        )
    )
    lines = [f"PUT {path} HTTP/1.1", "Host: node", f"Content-Length: {len(shard.body)}"]
    lines += [f"{name}: {value}" for name, value in fields.items()]
    lines += ["Expect: 100-continue"] if is_waiting else []
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


@asynccontextmanager
async def dial(node: Any) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    url = urlsplit(node.url)
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    try:
        yield reader, writer
    finally:
        writer.close()


async def read_to_end(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(10):
        return await reader.read()


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> None:
    writer.write(request)
    async with asyncio.timeout(10):
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"


async def test_a_long_body_is_taken_directly_and_the_connection_closed(serve: Any, make_shard: Any) -> None:
    shard = make_shard(BODY)
    async with serve() as node, dial(node) as (reader, writer):
        with mock.patch.object(server, "receive_body", wraps=receiving.receive_body) as received:
            await ask(reader, writer, make_request(shard))
            writer.write(BODY)
            answer = await read_to_end(reader)
        assert received.call_count == 1
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"connection: close" in answer.lower()
        assert node.engine.get_record(shard.offer.blob, shard.offer.shard).shard_bytes == len(BODY)


async def test_a_sender_that_does_not_wait_is_served_by_the_library(serve: Any, make_shard: Any) -> None:
    shard = make_shard(BODY)
    async with serve() as node, dial(node) as (reader, writer):
        with mock.patch.object(server, "receive_body", side_effect=AssertionError):
            writer.write(make_request(shard) + BODY[:1000])  # it says that it waits, and does not
            await asyncio.sleep(0)
            writer.write(BODY[1000:])
            async with asyncio.timeout(10):
                assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
                assert (await reader.readline()) == b"HTTP/1.1 200 OK\r\n"
        assert node.engine.get_record(shard.offer.blob, shard.offer.shard).shard_bytes == len(BODY)


@pytest.mark.parametrize("is_cut", [True, False])
async def test_a_body_that_is_cut_or_stops_leaves_nothing(
    is_cut: bool, serve: Any, make_shard: Any, get_files: Any, tmp_path: Any, wait_until_async: Any
) -> None:
    shard = make_shard(BODY)

    def is_clean() -> bool:
        return node.engine.get_quota().reserved_bytes == 0 and get_files(tmp_path / "served") == {}

    async with serve(body_timeout_seconds=0.3) as node, dial(node) as (reader, writer):
        await ask(reader, writer, make_request(shard))
        writer.write(BODY[:300_000])
        if is_cut:
            writer.close()
        else:
            assert (await read_to_end(reader)).startswith(b"HTTP/1.1 429 ")
        await wait_until_async(is_clean, "the upload is gone")


async def test_altered_bytes_are_refused(serve: Any, make_shard: Any) -> None:
    shard = make_shard(BODY)
    async with serve() as node, dial(node) as (reader, writer):
        await ask(reader, writer, make_request(shard))
        writer.write(BODY[:-1] + b"\0")
        assert (await read_to_end(reader)).startswith(b"HTTP/1.1 422 ")
        assert node.engine.get_quota().reserved_bytes == 0


def test_the_socket_comes_back_as_it_was(open_engine: Any, make_shard: Any) -> None:
    """An event loop may own the other handle of it: it must neither wait in the system, nor for a limited time."""
    shard, engine = make_shard(BODY), open_engine()
    for sent in (BODY, BODY[:-1]):
        ours, theirs = socket.socketpair()
        with ours, theirs, engine.upload(shard.offer) as upload:
            ours.setblocking(False)
            sender = threading.Thread(target=lambda: (theirs.sendall(sent), theirs.shutdown(socket.SHUT_WR)))  # noqa: B023
            sender.start()
            with suppress(UploadInterrupted):
                receiving.receive_body(ours, upload, BufferPool(), body_timeout_seconds=5.0)
            sender.join(5)
            assert upload.staged.num_bytes <= len(sent)
            assert not ours.getblocking()
            assert not any(ours.getsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, 16))
