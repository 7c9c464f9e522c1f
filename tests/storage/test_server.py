"""The HTTP API over real sockets: what is refused, in which order, and what a receipt stands for."""

from __future__ import annotations

import asyncio
import io
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from da.core.blob import compute_blob_id
from da.core.receipt import is_receipt_valid
from da.core.types import Epoch, Height, ShardIndex, Tier
from da.protocol import PutRequest, decode_receipt, encode_put, header_path, shard_path
from storage.node.metrics import COUNTERS, GAUGES, PREFIX

GENESIS_HASH = bytes(range(32))
Serve = Callable[..., Any]


def make_put(shard: Any, **changes: Any) -> PutRequest:
    offer = shard.offer
    request = PutRequest(
        blob=offer.blob,
        seat=offer.shard,
        epoch=offer.epoch,
        tier=offer.tier,
        expiry=offer.expiry,
        header=offer.header,
    )
    return replace(request, **changes)


async def send(
    session: aiohttp.ClientSession, url: str, put: PutRequest, body: Any, **options: Any
) -> tuple[int, Any, Any]:
    path, fields = encode_put(put)
    if isinstance(body, bytes):
        body = io.BytesIO(body)
    async with session.put(
        url + path, data=body, headers={**fields, **options.pop("headers", {})}, **options
    ) as answer:
        return answer.status, await answer.read(), answer.headers


@pytest.mark.parametrize("tier", [Tier.HOT, Tier.TEMPORARY])
async def test_put_and_get(serve: Serve, make_shard: Any, tier: Tier) -> None:
    shard = make_shard(os.urandom(1_500_000), tier=tier)
    async with serve() as node, aiohttp.ClientSession() as session:
        put = make_put(shard)
        status, body, _ = await send(session, node.url, put, shard.body)
        assert status == 200, body
        receipt = decode_receipt(body)
        assert is_receipt_valid(receipt, put.terms(GENESIS_HASH), key=node.key.public)
        url = node.url + shard_path(shard.offer.blob, 0)
        async with session.get(url) as answer:
            assert await answer.read() == shard.body
        async with session.get(url, headers={"Range": "bytes=1000-2999"}) as answer:
            assert (answer.status, await answer.read()) == (206, shard.body[1000:3000])
            assert answer.headers["Content-Range"] == "bytes 1000-2999/1500000"
        async with session.get(url, headers={"Range": "bytes=1500000-"}) as answer:
            assert answer.status == 416
        async with session.head(url) as answer:
            assert (answer.status, answer.headers["Content-Length"]) == (200, "1500000")
        async with session.get(node.url + header_path(shard.offer.blob)) as answer:
            assert await answer.read() == shard.offer.header_bytes
        order = [event["event"] for event in node.trace.get_events()]
        synced = ["synced"] if tier is Tier.HOT else []
        assert order == ["admitted", "received", *synced, "renamed", "indexed", "signed"]


async def test_a_second_put_gets_a_fresh_receipt_without_new_bytes(
    serve: Serve, make_shard: Any, with_terms: Any
) -> None:
    shard = make_shard(b"x" * 10_000)
    longer = with_terms(shard, expiry=Height(2_000))
    async with serve() as node, aiohttp.ClientSession() as session:
        for one in (shard, longer):
            status, body, _ = await send(session, node.url, make_put(one), one.body)
            assert status == 200
            put = make_put(one)
            assert is_receipt_valid(decode_receipt(body), put.terms(GENESIS_HASH), key=node.key.public)
        assert node.engine.get_record(shard.offer.blob, ShardIndex(0)).expiry == 2_000
        order = [event["event"] for event in node.trace.get_events()]
        assert order[-2:] == ["indexed", "signed"], "the longer promise is durable before it is signed"
        assert order.count("received") == 1


@pytest.mark.parametrize(
    ("changes", "status", "error", "words"),
    [
        ({"epoch": Epoch(9)}, 403, "NotMySeat", "epoch 9, accepted 1"),
        ({"expiry": Height(100)}, 410, "Expired", "expiry 100 is not after height 100"),
        ({"expiry": Height(2**60)}, 400, "Malformed", "longest that tier hot is kept"),
    ],
)
async def test_invalid_terms(
    serve: Serve, make_shard: Any, changes: dict[str, Any], status: int, error: str, words: str
) -> None:
    shard = make_shard(b"x" * 100)
    async with serve() as node, aiohttp.ClientSession() as session:
        got, body, _ = await send(session, node.url, make_put(shard, **changes), shard.body)
        assert got == status
        assert error.encode() in body
        assert words.encode() in body
        assert node.engine.index.get_totals().num_shards == 0


async def test_invalid_another_nodes_seat(serve: Serve, make_shard: Any, chain: Any) -> None:
    shard = make_shard(b"x" * 100)
    async with serve() as node, aiohttp.ClientSession() as session:
        committee = chain.committees[0]
        other = replace(committee, seats=(replace(committee.seats[0], key=b"\1" * 32),))
        chain.committees, chain.height = (other,), 101
        await node.watch.refresh()
        status, body, _ = await send(session, node.url, make_put(shard), shard.body)
        assert status == 403
        assert b"seat 0 of epoch 1 is not this node's, which holds: none" in body


async def test_invalid_bodies(serve: Serve, make_shard: Any, get_files: Any) -> None:
    shard = make_shard(b"x" * 1_000)
    put = make_put(shard)
    async with serve() as node, aiohttp.ClientSession() as session:
        assert (await send(session, node.url, put, b"y" * 1_000))[0] == 422
        assert (await send(session, node.url, put, b"x" * 1_001))[0] == 413
        assert (await send(session, node.url, put, b"x" * 999))[0] == 400

        async def without_length() -> Any:
            yield b"x" * 1_000

        assert (await send(session, node.url, put, without_length()))[0] == 411
        path, fields = encode_put(put)
        for broken in ({}, {"X-Archipelago-Blob-Header": "zz"}, {"X-Archipelago-Blob-Header": "01" * 48}):
            async with session.put(node.url + path, data=shard.body, headers=broken) as answer:
                assert answer.status == 400
        async with session.put(node.url + path.replace("expiry=1000", ""), data=b"", headers=fields) as answer:
            assert answer.status == 400
        for path in ("/v1/blobs/00/shards/0", "/v1/blobs/zz/header", f"/v1/blobs/{'00' * 32}/shards/-1"):
            async with session.get(node.url + path) as answer:
                assert answer.status == 400
        async with session.get(node.url + shard_path(shard.offer.blob, 0)) as answer:
            assert (answer.status, (await answer.json())["error"]) == (404, "UnknownBlob")
        assert get_files(node.engine.disk.home) == {}
        assert node.engine.get_quota().reserved_bytes == 0


async def test_full_is_said_before_the_body_with_numbers(serve: Serve, make_shard: Any) -> None:
    shard = make_shard(b"x" * (2 << 20))
    async with serve(capacity_bytes=1 << 20) as node, aiohttp.ClientSession() as session:
        status, body, headers = await send(session, node.url, make_put(shard), shard.body)
        assert status == 507
        assert headers["Retry-After"] == "60"
        assert b"2101248 bytes do not fit: 0 of 1048576 are used" in body
        assert [event["event"] for event in node.trace.get_events()] == []


async def test_with_expect_100_no_byte_of_a_refused_body_travels(serve: Serve, make_shard: Any) -> None:
    shard = make_shard(b"x" * (2 << 20))
    path, fields = encode_put(make_put(shard))
    async with serve(capacity_bytes=1 << 20) as node:
        host, port = node.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        lines = [f"PUT {path} HTTP/1.1", "Host: node", f"Content-Length: {len(shard.body)}", "Expect: 100-continue"]
        lines += [f"{name}: {value}" for name, value in fields.items()]
        writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())
        assert (await asyncio.wait_for(reader.readline(), 5)).startswith(b"HTTP/1.1 507")
        writer.close()
        await writer.wait_closed()


async def test_with_expect_100_an_accepted_body_is_asked_for(serve: Serve, make_shard: Any) -> None:
    shard = make_shard(b"x" * 100_000)
    async with serve() as node, aiohttp.ClientSession() as session:
        status, body, _ = await send(session, node.url, make_put(shard), shard.body, expect100=True)
        assert status == 200, body


async def test_with_expect_100_an_early_answer_does_not_spoil_the_connection(serve: Serve, make_shard: Any) -> None:
    shard = make_shard(b"x" * 200_000)
    async with serve() as node, aiohttp.ClientSession() as session:
        for _ in range(3):
            status, body, _ = await send(session, node.url, make_put(shard), shard.body, expect100=True)
            assert status == 200, body
            async with session.get(node.url + shard_path(shard.offer.blob, 0)) as answer:
                assert await answer.read() == shard.body
        status, body, _ = await send(session, node.url, make_put(shard, epoch=Epoch(9)), shard.body, expect100=True)
        assert status == 403
        assert (await send(session, node.url, make_put(shard), shard.body))[0] == 200


async def test_too_many_uploads_at_once(serve: Serve, make_shard: Any, wait_until_async: Any) -> None:
    slow, other = make_shard(b"x" * 1_000), make_shard(b"y" * 1_000)
    go = asyncio.Event()

    async def dribble() -> Any:
        yield slow.body[:500]
        await go.wait()
        yield slow.body[500:]

    async with serve(max_uploads=1) as node, aiohttp.ClientSession() as session:
        length = {"headers": {"Content-Length": "1000"}}
        first = asyncio.create_task(send(session, node.url, make_put(slow), dribble(), **length))
        await wait_until_async(lambda: node.engine.get_quota().reserved_bytes > 0, "the first upload is admitted")
        status, body, headers = await send(session, node.url, make_put(other), other.body)
        assert (status, headers["Retry-After"]) == (429, "1")
        assert b"uploads under way would be 2, at most 1" in body
        go.set()
        assert (await first)[0] == 200
        assert (await send(session, node.url, make_put(other), other.body))[0] == 200


async def test_a_body_that_stops_coming_is_given_up(serve: Serve, make_shard: Any, get_files: Any) -> None:
    shard = make_shard(b"x" * 1_000)
    path, fields = encode_put(make_put(shard))
    async with serve(body_timeout_seconds=0.2) as node:
        host, port = node.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        lines = [f"PUT {path} HTTP/1.1", "Host: node", "Content-Length: 1000"]
        lines += [f"{name}: {value}" for name, value in fields.items()]
        writer.write(("\r\n".join(lines) + "\r\n\r\n").encode() + b"x" * 10)
        assert (await asyncio.wait_for(reader.readline(), 5)).startswith(b"HTTP/1.1 429")
        writer.close()
        await writer.wait_closed()
        assert get_files(node.engine.disk.home) == {}


async def test_aborted_uploads_leave_nothing(
    serve: Serve, make_shard: Any, get_files: Any, wait_until_async: Any
) -> None:
    """Case 70: a hundred clients that hang up in the middle; room for one, so every leak would show."""
    shard = make_shard(os.urandom(600_000))
    path, fields = encode_put(make_put(shard))
    lines = [f"PUT {path} HTTP/1.1", "Host: node", f"Content-Length: {len(shard.body)}"]
    lines += [f"{name}: {value}" for name, value in fields.items()]
    head = ("\r\n".join(lines) + "\r\n\r\n").encode()
    async with serve(capacity_bytes=1 << 20) as node, aiohttp.ClientSession() as session:
        host, port = node.url.removeprefix("http://").split(":")
        for number in range(100):
            _, writer = await asyncio.open_connection(host, int(port))
            writer.write(head + shard.body[: 1 + number * 5_000])
            await writer.drain()
            await wait_until_async(lambda: node.engine.get_quota().reserved_bytes > 0, "the upload is admitted")
            writer.transport.abort()
            await wait_until_async(lambda: node.engine.get_quota().reserved_bytes == 0, "the room comes back")
        assert node.engine.get_quota().used_bytes == 0
        assert get_files(node.engine.disk.home) == {}
        assert (await send(session, node.url, make_put(shard), shard.body))[0] == 200


async def test_a_new_epoch_is_asked_for_at_once(serve: Serve, make_shard: Any, chain: Any) -> None:
    shard = make_shard(b"x" * 100, epoch=2)
    async with serve() as node, aiohttp.ClientSession() as session:
        old = chain.committees[0]
        chain.committees, chain.height = (replace(old, epoch=Epoch(2)), old), 101
        await asyncio.sleep(0.25)
        assert (await send(session, node.url, make_put(shard), shard.body))[0] == 200


async def test_the_chain_is_down(serve: Serve, make_shard: Any, chain: Any) -> None:
    shard, second = make_shard(b"x" * 100), make_shard(b"y" * 100)
    async with serve() as node, aiohttp.ClientSession() as session:
        assert (await send(session, node.url, make_put(shard), shard.body))[0] == 200
        chain.is_down = True
        assert (await send(session, node.url, make_put(second), second.body))[0] == 200, "the committee is known"
        async with session.get(node.url + shard_path(shard.offer.blob, 0)) as answer:
            assert await answer.read() == shard.body
    chain.is_down = True
    async with serve(is_known=False) as node, aiohttp.ClientSession() as session:
        status, body, headers = await send(session, node.url, make_put(second), second.body)
        assert (status, headers["Retry-After"]) == (429, "5")
        assert b"has not reached its chain yet" in body
        async with session.get(node.url + shard_path(shard.offer.blob, 0)) as answer:
            assert await answer.read() == shard.body


async def test_invalid_code_of_another_committee(serve: Serve, make_shard: Any) -> None:
    shard = make_shard(b"x" * 100)
    header = replace(shard.offer.header, num_shards=2, shard_roots=shard.offer.header.shard_roots * 2)
    put = make_put(shard, header=header, blob=compute_blob_id(header))
    async with serve() as node, aiohttp.ClientSession() as session:
        status, body, _ = await send(session, node.url, put, shard.body)
        assert status == 400
        assert b"coded 1 of 2, epoch 1 with 1 seats uses 1 of 1" in body


async def test_status_metrics_and_page(serve: Serve, make_shard: Any) -> None:
    shard = make_shard(b"x" * 100)
    async with serve() as node, aiohttp.ClientSession() as session:
        await send(session, node.url, make_put(shard), shard.body)
        await send(session, node.url, make_put(shard, epoch=Epoch(7)), shard.body)
        async with session.get(node.url + "/v1/status") as answer:
            status = await answer.json()
        assert status["space"]["num_shards"] == 1
        assert status["space"]["used_bytes"] == 8192
        assert status["chain"] == {
            "is_reachable": True,
            "height": 100,
            "genesis_hash": GENESIS_HASH.hex(),
            "seats": {"1": [0]},
        }
        async with session.get(node.url + "/metrics") as answer:
            text = await answer.text()
        assert 'storage_puts_total{tier="hot"} 1.0' in text
        assert 'storage_refusals_total{reason="WrongEpoch"} 1.0' in text
        assert "storage_used_bytes 8192.0" in text
        families = [each for each in text_string_to_metric_families(text) if not each.name.endswith("_created")]
        help_of = {each.name: each.documentation for each in families}
        assert help_of == {PREFIX + name: meaning for name, meaning in (COUNTERS | GAUGES).items()}
        assert all(len(meaning.split()) > 3 for meaning in help_of.values())
        spec = (Path(__file__).parents[2] / "storage/SPEC.md").read_text()
        assert [name for name in help_of if f"`{name}`" not in spec] == []
        async with session.get(node.url + "/") as answer:
            assert answer.content_type == "text/html"
            assert node.key.public.hex() in await answer.text()
