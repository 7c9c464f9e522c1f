"""Dispersal and retrieval past dead, slow and lying nodes, over real sockets (cases 58, 64, 78)."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import AsyncIterator
from typing import Any
from unittest import mock

import pytest
from aiohttp import web

from da import gathering, hedging
from da import retrieval as retrieval_module
from da.client import AsyncBlobClient
from da.codec import encode_blob
from da.core.blob import compute_blob_id, encode_header
from da.core.certificate import verify_certificate
from da.core.errors import (
    BlobTooLarge,
    FaultKind,
    HeaderUnavailable,
    InconsistentBlob,
    NotEnoughReceipts,
    NotEnoughShards,
)
from da.core.merkle import compute_root
from da.core.types import BlobId, Height, ShardIndex, Tier
from da.protocol import Refusal, encode_receipt
from da.signing import sign_receipt

DATA = random.Random(3).randbytes(100_001)


@pytest.fixture
async def client() -> AsyncIterator[AsyncBlobClient]:
    async with AsyncBlobClient(deadline_seconds=5.0) as client:
        yield client


@pytest.fixture(autouse=True)
def hurry() -> Any:
    """Waits of a test, not of an ocean."""
    with (
        mock.patch.object(retrieval_module, "PATIENCE_SECONDS", 0.1),
        mock.patch.object(hedging, "PATIENCE_SECONDS", 0.1),
        mock.patch.object(gathering, "GRACE_SECONDS", 0.3),
        mock.patch.object(retrieval_module, "LOOK_SECONDS", 0.02),
    ):
        yield


@pytest.fixture
def disperse(client: AsyncBlobClient, fakes: Any) -> Any:
    async def run(nodes: Any, data: bytes = DATA, client: AsyncBlobClient = client) -> Any:
        return await client.disperse(
            data, committee=nodes.committee, genesis_hash=fakes.GENESIS, tier=Tier.HOT, expiry=fakes.EXPIRY
        )

    return run


def kinds(faults: Any) -> dict[int, FaultKind]:
    return {fault.seat: fault.kind for fault in faults}


async def alter(request: web.Request) -> web.StreamResponse:
    """Serve bytes of the right length that are not the shard's."""
    size = len(DATA) // 2 + 1
    return web.Response(body=b"\x55" * size)


@pytest.mark.parametrize("size", [0, 1, 2, 1023, 1024, 262_144, 3_000_001])
async def test_round_trip(four: Any, client: AsyncBlobClient, disperse: Any, fakes: Any, size: int) -> None:
    data = random.Random(size).randbytes(size)
    dispersal = await disperse(four, data)
    assert dispersal.faults == ()
    certificate = dispersal.certificate
    verify_certificate(certificate, four.committee, genesis_hash=fakes.GENESIS, height=Height(1))
    assert [seat for seat, _ in certificate.signatures] == [0, 1, 2, 3]
    assert certificate.terms.size_bytes == size
    with (  # on a busy machine any seat is late
        mock.patch.object(hedging, "HEDGE_SECONDS", 30.0),
        mock.patch.object(hedging, "PATIENCE_SECONDS", 30.0),
        mock.patch.object(retrieval_module, "PATIENCE_SECONDS", 30.0),
    ):
        retrieved = await client.retrieve(certificate.terms.blob, committee=four.committee, max_bytes=size)
    assert retrieved.data == data
    assert retrieved.report.seats == (0, 1)
    assert retrieved.report.faults == ()
    assert [node.num_gets for node in four.nodes] == [1, 1, 0, 0]


@pytest.mark.parametrize("num_seats", [1, 2, 3, 7])
async def test_round_trip_with_other_committees(
    client: AsyncBlobClient, disperse: Any, fakes: Any, num_seats: int
) -> None:
    async with fakes.run_nodes(num_seats) as nodes:
        certificate = (await disperse(nodes)).certificate
        verify_certificate(certificate, nodes.committee, genesis_hash=fakes.GENESIS, height=Height(1))
        retrieved = await client.retrieve(certificate.terms.blob, committee=nodes.committee, max_bytes=10**6)
        assert retrieved.data == DATA


async def test_small_committees_warn_once(disperse: Any, fakes: Any, caplog: pytest.LogCaptureFixture) -> None:
    async with fakes.run_nodes(3) as nodes:
        await disperse(nodes)
        await disperse(nodes)
    assert caplog.text.count("a committee of 3 seats survives crashes at most") == 1


async def test_one_dead_node_does_not_matter(four: Any, client: AsyncBlobClient, disperse: Any, fakes: Any) -> None:
    await four.kill(0)
    dispersal = await disperse(four)
    assert kinds(dispersal.faults) == {0: FaultKind.UNREACHABLE}
    verify_certificate(dispersal.certificate, four.committee, genesis_hash=fakes.GENESIS, height=Height(1))
    blob = dispersal.certificate.terms.blob
    retrieved = await client.retrieve(blob, committee=four.committee, max_bytes=10**6)
    assert retrieved.data == DATA
    assert retrieved.report.seats == (1, 2)
    assert kinds(retrieved.report.faults) == {0: FaultKind.UNREACHABLE}


async def test_two_dead_nodes_certify_nothing_and_are_named(four: Any, disperse: Any) -> None:
    await four.kill(1)
    await four.kill(2)
    with pytest.raises(NotEnoughReceipts) as caught:
        await disperse(four)
    named = kinds(caught.value.faults)
    assert named[1] == named[2] == FaultKind.UNREACHABLE
    assert caught.value.expected == 3
    for index in (1, 2):
        assert f"seat {index} ({four.nodes[index].url}): unreachable" in str(caught.value)
    assert "nothing is certified" in str(caught.value)


async def test_three_dead_nodes_are_named_with_their_reasons(four: Any, disperse: Any, fakes: Any) -> None:
    """Case 64: never "0 successful" without a reason."""

    async def full(_: web.Request) -> web.StreamResponse:
        await asyncio.sleep(0.05)
        return fakes.refuse(507, Refusal.FULL, "free 10 bytes, need 50,001")

    await four.kill(0)
    await four.kill(1)
    four.nodes[3].put_fault = full
    with pytest.raises(NotEnoughReceipts, match="1 receipts, expected at least 3") as caught:
        await disperse(four)
    assert kinds(caught.value.faults) == {
        0: FaultKind.UNREACHABLE,
        1: FaultKind.UNREACHABLE,
        3: FaultKind.REFUSED,
    }


async def test_three_dead_nodes_are_named_by_a_reader(four: Any, client: AsyncBlobClient, disperse: Any) -> None:
    blob = (await disperse(four)).certificate.terms.blob
    for index in (0, 1, 2):
        await four.kill(index)
    with pytest.raises(NotEnoughShards) as caught:
        await client.retrieve(blob, committee=four.committee, max_bytes=10**6)
    assert set(kinds(caught.value.faults)) >= {0, 1, 2}
    for index in (0, 1, 2):
        assert four.nodes[index].url in str(caught.value)
    assert caught.value.expected == 2


async def test_late_signatures_complete_an_attempt(four: Any, disperse: Any, fakes: Any) -> None:
    """Two of four signed: insufficient. Once the others are back the same dispersal succeeds."""

    async def full(_: web.Request) -> web.StreamResponse:
        return fakes.refuse(507, Refusal.FULL, "free 10 bytes, need 50,001")

    four.nodes[2].put_fault = four.nodes[3].put_fault = full
    with pytest.raises(NotEnoughReceipts, match="507 Full: free 10 bytes, need 50,001") as caught:
        await disperse(four)
    assert {2, 3} >= set(kinds(caught.value.faults)) - {0, 1}
    four.nodes[2].put_fault = None
    dispersal = await disperse(four)
    assert kinds(dispersal.faults) == {3: FaultKind.REFUSED}


async def test_a_lying_node_is_noticed_and_named(four: Any, client: AsyncBlobClient, disperse: Any) -> None:
    """Case 78: verification is what a read does, not an option."""
    blob = (await disperse(four)).certificate.terms.blob
    four.nodes[1].get_fault = alter
    retrieved = await client.retrieve(blob, committee=four.committee, max_bytes=10**6)
    assert retrieved.data == DATA
    assert retrieved.report.seats == (0, 2)
    assert kinds(retrieved.report.faults) == {1: FaultKind.BAD_SHARD}
    assert "hash to root" in retrieved.report.faults[0].reason


async def test_one_dead_and_one_lying(four: Any, client: AsyncBlobClient, disperse: Any) -> None:
    blob = (await disperse(four)).certificate.terms.blob
    four.nodes[0].get_fault = alter
    await four.kill(3)
    retrieved = await client.retrieve(blob, committee=four.committee, max_bytes=10**6)
    assert retrieved.data == DATA
    assert retrieved.report.seats == (1, 2)
    assert kinds(retrieved.report.faults)[0] == FaultKind.BAD_SHARD


@pytest.mark.parametrize("body", [b"", DATA[:100], b"\0" * 200_000])
async def test_shards_of_a_wrong_length_are_refused(
    four: Any, client: AsyncBlobClient, disperse: Any, body: bytes
) -> None:
    blob = (await disperse(four)).certificate.terms.blob

    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(body=body)

    four.nodes[0].get_fault = answer
    retrieved = await client.retrieve(blob, committee=four.committee, max_bytes=10**6)
    assert retrieved.data == DATA
    assert kinds(retrieved.report.faults) == {0: FaultKind.BAD_SHARD}


async def test_a_connection_cut_in_the_middle(four: Any, client: AsyncBlobClient, disperse: Any) -> None:
    blob = (await disperse(four)).certificate.terms.blob

    async def cut(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": str(len(DATA) // 2 + 1)})
        await response.prepare(request)
        await response.write(DATA[:1000])
        assert request.transport is not None
        request.transport.abort()
        return response

    four.nodes[0].get_fault = cut
    retrieved = await client.retrieve(blob, committee=four.committee, max_bytes=10**6)
    assert retrieved.data == DATA
    assert kinds(retrieved.report.faults) == {0: FaultKind.UNREACHABLE}


async def test_slow_nodes_get_substitutes(four: Any, client: AsyncBlobClient, disperse: Any, fakes: Any) -> None:
    blob = (await disperse(four)).certificate.terms.blob
    four.nodes[0].get_fault = fakes.hang
    four.nodes[0].header_fault = fakes.hang

    async def trickle(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": str(len(DATA) // 2 + 1)})
        await response.prepare(request)
        while True:
            await response.write(b"x")
            await asyncio.sleep(0.02)

    four.nodes[1].get_fault = trickle
    async with asyncio.timeout(3):
        retrieved = await client.retrieve(blob, committee=four.committee, max_bytes=10**6)
    assert retrieved.data == DATA
    assert retrieved.report.seats == (2, 3)
    assert kinds(retrieved.report.faults) == {0: FaultKind.TIMEOUT, 1: FaultKind.TIMEOUT}


async def test_a_slow_node_does_not_hold_up_a_dispersal(four: Any, disperse: Any, fakes: Any) -> None:
    four.nodes[2].put_fault = fakes.hang
    async with asyncio.timeout(3):
        dispersal = await disperse(four)
    assert kinds(dispersal.faults) == {2: FaultKind.TIMEOUT}
    assert [seat for seat, _ in dispersal.certificate.signatures] == [0, 1, 3]


async def test_deadlines_end_every_wait(four: Any, disperse: Any, fakes: Any) -> None:
    four.nodes[2].put_fault = four.nodes[3].put_fault = fakes.hang
    async with AsyncBlobClient(deadline_seconds=0.3) as client, asyncio.timeout(4):
        with pytest.raises(NotEnoughReceipts) as caught:
            await disperse(four, client=client)
    assert FaultKind.TIMEOUT in set(kinds(caught.value.faults).values())


async def test_a_busy_node_is_asked_again(four: Any, disperse: Any, fakes: Any) -> None:
    asked = 0

    async def busy(_: web.Request) -> web.StreamResponse | None:
        nonlocal asked
        asked += 1
        if asked > 2:
            return None
        return fakes.refuse(429, Refusal.BUSY, "later", headers={"Retry-After": "0"})

    four.nodes[1].put_fault = busy
    dispersal = await disperse(four)
    assert dispersal.faults == ()
    assert asked == 3


async def test_a_refusal_costs_no_body(four: Any, disperse: Any, fakes: Any) -> None:
    """Large shards are offered before they are sent."""

    async def full(_: web.Request) -> web.StreamResponse:
        return fakes.refuse(507, Refusal.FULL, "full")

    four.nodes[0].put_fault = full
    async with AsyncBlobClient() as client:
        await disperse(four, bytes(2_000_000), client=client)
        assert client.traffic.bytes_sent < 3 * 1_000_000 + 20_000
    assert four.nodes[0].num_body_bytes == 0


@pytest.mark.parametrize(
    "lie",
    [
        lambda fakes, terms: sign_receipt(fakes.make_key(2), terms, ShardIndex(1)),
        lambda fakes, terms: sign_receipt(fakes.make_key(1), terms, ShardIndex(2)),
        lambda fakes, terms: sign_receipt(
            fakes.make_key(1), dataclasses.replace(terms, expiry=Height(5)), ShardIndex(1)
        ),
        lambda fakes, terms: sign_receipt(
            fakes.make_key(1), dataclasses.replace(terms, genesis_hash=bytes(32)), ShardIndex(1)
        ),
        lambda fakes, terms: dataclasses.replace(
            sign_receipt(fakes.make_key(1), terms, ShardIndex(1)), signature=bytes(64)
        ),
    ],
    ids=["key", "seat", "expiry", "genesis", "signature"],
)
async def test_invalid_receipts_do_not_count(four: Any, disperse: Any, fakes: Any, lie: Any) -> None:
    node = four.nodes[1]
    node.sign = lambda put: encode_receipt(lie(fakes, put.terms(fakes.GENESIS)))
    dispersal = await disperse(four)
    assert kinds(dispersal.faults) == {1: FaultKind.BAD_RECEIPT}
    assert [seat for seat, _ in dispersal.certificate.signatures] == [0, 2, 3]


async def test_invalid_answers_do_not_count(four: Any, client: AsyncBlobClient, disperse: Any, fakes: Any) -> None:
    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(bytes(4096))

    async def redirect(_: web.Request) -> web.StreamResponse:
        return web.Response(status=302, headers={"Location": four.nodes[0].url})

    blob = (await disperse(four)).certificate.terms.blob
    for fault in (endless, redirect):
        four.nodes[1].put_fault = four.nodes[1].header_fault = fault
        four.nodes[1].get_fault = redirect
        assert kinds((await disperse(four)).faults) == {1: FaultKind.REFUSED}
        assert (await client.retrieve(blob, committee=four.committee, max_bytes=10**6)).data == DATA


async def test_a_header_is_checked_against_the_id(four: Any, client: AsyncBlobClient, disperse: Any) -> None:
    """Every node but one lies about the header, its size among others (case 59)."""
    blob = (await disperse(four)).certificate.terms.blob
    real = four.nodes[0].headers[blob.hex()]
    lies = [encode_header(dataclasses.replace(real, size_bytes=5)), b"junk", b""]
    honest = (blob[0] + 3) % 4
    for step, lie in enumerate(lies):

        async def answer(_: web.Request, lie: bytes = lie) -> web.StreamResponse:
            return web.Response(body=lie)

        four.nodes[(blob[0] + step) % 4].header_fault = answer
    retrieved = await client.retrieve(blob, committee=four.committee, max_bytes=10**6)
    assert retrieved.data == DATA
    assert kinds(retrieved.report.faults) == {seat: FaultKind.BAD_HEADER for seat in range(4) if seat != honest}


async def test_unknown_blob_names_every_seat(four: Any, client: AsyncBlobClient) -> None:
    with pytest.raises(HeaderUnavailable) as caught:
        await client.retrieve(BlobId(bytes(32)), committee=four.committee, max_bytes=10)
    assert kinds(caught.value.faults) == dict.fromkeys(range(4), FaultKind.REFUSED)
    assert "404 UnknownBlob" in str(caught.value)


async def test_too_large_a_blob_is_refused_before_any_shard(four: Any, client: AsyncBlobClient, disperse: Any) -> None:
    blob = (await disperse(four)).certificate.terms.blob
    with pytest.raises(BlobTooLarge, match=f"blob of {len(DATA)} bytes, at most 10 allowed"):
        await client.retrieve(blob, committee=four.committee, max_bytes=10)
    assert [node.num_gets for node in four.nodes] == [0, 0, 0, 0]


async def test_invalid_encoding_is_one_verdict_for_all_readers(four: Any, client: AsyncBlobClient, fakes: Any) -> None:
    """A malicious publisher: proper roots over shards that are no code word."""
    encoded = encode_blob(DATA, num_data=2, num_shards=4, leaf_bytes=1024)
    shards = [b"".join(pieces) for pieces in encoded.shards]
    shards[3] = bytes(len(shards[3]))
    roots = tuple(compute_root(shard, leaf_bytes=1024) for shard in shards)
    header = dataclasses.replace(encoded.header, shard_roots=roots)
    blob = compute_blob_id(header)
    for node, shard in zip(four.nodes, shards, strict=True):
        node.shards[blob.hex()], node.headers[blob.hex()] = shard, header
    messages = set()
    for dead in range(4):

        async def missing(_: web.Request) -> web.StreamResponse:
            return fakes.refuse(404, Refusal.UNKNOWN_BLOB, "not here")

        for index, node in enumerate(four.nodes):
            node.get_fault = missing if index in {dead, (dead + 1) % 4} else None
        with pytest.raises(InconsistentBlob) as caught:
            await client.retrieve(blob, committee=four.committee, max_bytes=10**6)
        messages.add(str(caught.value))
    assert len(messages) == 1


async def test_nonsense_urls_are_faults(four: Any, client: AsyncBlobClient, disperse: Any) -> None:
    for url in ("file:///etc/passwd", "not a url", "http://", "http://127.0.0.1:99999", ""):
        seats = list(four.committee.seats)
        seats[1] = dataclasses.replace(seats[1], url=url)
        nodes = dataclasses.replace(four, committee=dataclasses.replace(four.committee, seats=tuple(seats)))
        assert kinds((await disperse(nodes)).faults) == {1: FaultKind.UNREACHABLE}


async def test_bytes_are_counted_at_the_sockets(four: Any, client: AsyncBlobClient, disperse: Any) -> None:
    certificate = (await disperse(four)).certificate
    sent = client.traffic.bytes_sent
    assert 4 * 50_001 < sent < 4 * 50_001 + 4 * 2000
    received = client.traffic.bytes_received
    await client.retrieve(certificate.terms.blob, committee=four.committee, max_bytes=10**6)
    assert 2 * 50_001 < client.traffic.bytes_received - received < 2 * 50_001 + 3000


async def test_a_cancelled_call_leaves_nothing_running(
    four: Any, client: AsyncBlobClient, disperse: Any, fakes: Any
) -> None:
    before = asyncio.all_tasks()
    for node in four.nodes:
        node.put_fault = fakes.hang
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await disperse(four)
    leftover = {task for task in asyncio.all_tasks() - before if "aiohttp" not in repr(task)}
    assert not leftover


async def test_random_faults_never_give_wrong_bytes(
    four: Any, client: AsyncBlobClient, disperse: Any, fakes: Any
) -> None:
    """Whatever up to four nodes do, a read is right or an error of ours."""
    blob = (await disperse(four)).certificate.terms.blob
    rng = random.Random(9)

    async def missing(_: web.Request) -> web.StreamResponse:
        return fakes.refuse(404, Refusal.UNKNOWN_BLOB, "not here")

    outcomes = set()
    for _ in range(25):
        faults = [rng.choice([None, None, alter, missing]) for _ in range(4)]
        for node, fault in zip(four.nodes, faults, strict=True):
            node.get_fault = fault
        read = client.retrieve(blob, committee=four.committee, max_bytes=10**6)
        if faults.count(None) < 2:
            with pytest.raises(NotEnoughShards):
                await read
            outcomes.add("error")
        else:
            assert (await read).data == DATA
            outcomes.add("data")
    assert outcomes == {"data", "error"}


async def test_a_seat_that_is_merely_slower_does_not_slow_a_read(
    four: Any, client: AsyncBlobClient, disperse: Any
) -> None:
    """Twice the minimum rate, so it is never behind; the other seat was done long ago."""
    data = random.Random(6).randbytes(3_000_001)
    blob = (await disperse(four, data)).certificate.terms.blob
    shard = four.nodes[0].shards[blob.hex()]

    async def drip(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": str(len(shard))})
        await response.prepare(request)
        for start in range(0, len(shard), 100_000):
            await response.write(shard[start : start + 100_000])
            await asyncio.sleep(0.3)
        return response

    four.nodes[0].get_fault = drip
    start = asyncio.get_running_loop().time()
    retrieved = await client.retrieve(blob, committee=four.committee, max_bytes=len(data))
    assert retrieved.data == data
    assert retrieved.report.seats == (1, 2)
    assert kinds(retrieved.report.faults) == {0: FaultKind.TIMEOUT}
    assert asyncio.get_running_loop().time() - start < 4.0  # alone it takes 4.8 s
