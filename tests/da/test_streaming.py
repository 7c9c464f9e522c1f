"""Blobs larger than memory, with stripes and slabs made small: same ids, same verdicts, past dead and lying seats."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import os
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from aiohttp import web

from contracts.bindings.failures import describe_failure
from da import client as client_module
from da import gathering, hedging, slab_feed, slabs
from da.client import AsyncBlobClient
from da.codec import compute_shard_root, encode_blob
from da.core import blob as blob_module
from da.core.blob import compute_blob_id
from da.core.certificate import verify_certificate
from da.core.errors import FaultKind, InconsistentBlob, NotEnoughReceipts, NotEnoughShards, SourceChanged
from da.core.folds import compute_fold
from da.core.scheme import compute_scheme
from da.core.types import Height, Tier
from da.folding import make_seed
from da.protocol import Refusal
from da.slab_feed import SlabFeed
from da.slabs import FileSource, MemorySource, iterate_slabs

DATA = random.Random(4).randbytes(1_234_567)
STRIPE = 300_000


@pytest.fixture(autouse=True)
def small_pieces() -> Any:
    """Five stripes of three slabs or so."""
    with (
        mock.patch.object(blob_module, "STRIPE_BYTES", STRIPE),
        mock.patch.object(client_module, "STRIPE_BYTES", STRIPE),
        mock.patch.object(slabs, "MAX_WIDTH_BYTES", 65_536),
        mock.patch.object(gathering, "GRACE_SECONDS", 0.3),
        mock.patch.object(slab_feed, "LAG_SECONDS", 0.3),
        mock.patch.object(hedging, "HEDGE_SECONDS", 0.1),
        mock.patch.object(hedging, "PATIENCE_SECONDS", 0.3),
    ):
        yield


@pytest.fixture
async def client() -> AsyncIterator[AsyncBlobClient]:
    async with AsyncBlobClient(deadline_seconds=5.0) as client:
        yield client


@pytest.fixture
def disperse(client: AsyncBlobClient, fakes: Any) -> Any:
    async def run(nodes: Any, source: Any = None) -> Any:
        return await client.disperse_stream(
            source or MemorySource(DATA),
            committee=nodes.committee,
            genesis_hash=fakes.GENESIS,
            tier=Tier.HOT,
            expiry=fakes.EXPIRY,
        )

    return run


@pytest.fixture
def retrieve(client: AsyncBlobClient, tmp_path: Path) -> Any:
    async def run(nodes: Any, blob: Any) -> Any:
        path = tmp_path / "out"
        report = await client.retrieve_to_file(blob, path, committee=nodes.committee, max_bytes=10**7)
        return report, path.read_bytes()

    return run


def list_names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def kinds(faults: Any) -> dict[int, FaultKind]:
    return {fault.seat: fault.kind for fault in faults}


@pytest.mark.parametrize("size", [0, 1, STRIPE, STRIPE + 1, 2 * STRIPE + 77, len(DATA)])
@pytest.mark.parametrize(("k", "n"), [(1, 3), (2, 4), (4, 6), (22, 64)])
def test_slabs_give_every_byte_once_and_shards_in_order(size: int, k: int, n: int) -> None:
    seen, shard_at = bytearray(size), 0
    for slab in iterate_slabs(size, num_data=k, num_shards=n):
        assert slab.shard_start == shard_at
        shard_at += slab.num_bytes
        for index in range(k):
            start, count = slab.get_blob_range(index)
            seen[start : start + count] = bytes(byte + 1 for byte in seen[start : start + count])
    assert seen == b"\1" * size
    assert shard_at == blob_module.compute_shard_bytes(size, k)


@pytest.mark.parametrize("num_seats", [1, 3, 4, 7])
async def test_round_trip_has_the_id_of_the_blob_in_memory(
    disperse: Any, retrieve: Any, fakes: Any, tmp_path: Path, num_seats: int
) -> None:
    path = tmp_path / "in"
    path.write_bytes(DATA)
    async with fakes.run_nodes(num_seats) as nodes:
        with FileSource(path) as source:
            dispersal = await disperse(nodes, source)
        verify_certificate(dispersal.certificate, nodes.committee, genesis_hash=fakes.GENESIS, height=Height(1))
        scheme = compute_scheme(num_seats)
        encoded = encode_blob(DATA, num_data=scheme.num_data, num_shards=num_seats, leaf_bytes=65_536)
        assert dispersal.certificate.terms.blob == encoded.blob
        for node, pieces in zip(nodes.nodes, encoded.shards, strict=True):
            assert node.shards[encoded.blob.hex()] == b"".join(pieces)
        report, data = await retrieve(nodes, encoded.blob)
        assert data == DATA
        assert report.faults == ()
    assert [name for name in list_names(tmp_path) if name.endswith(".part")] == []


@pytest.mark.parametrize("size", [0, 1, 9_000, STRIPE, len(DATA)])
@pytest.mark.parametrize("num_seats", [1, 4])
async def test_the_id_is_known_before_anything_is_sent(
    client: AsyncBlobClient, disperse: Any, fakes: Any, num_seats: int, size: int
) -> None:
    source = MemorySource(DATA[:size])
    async with fakes.run_nodes(num_seats) as nodes:
        named = await client.identify(source, committee=nodes.committee, tier=Tier.HOT)
        assert client.traffic.bytes_sent == 0
        assert named == (await disperse(nodes, source)).certificate.terms.blob


async def test_a_lying_seat_is_named_and_the_bytes_are_right(four: Any, disperse: Any, retrieve: Any) -> None:
    blob = (await disperse(four)).certificate.terms.blob
    shard = bytearray(four.nodes[0].shards[blob.hex()])
    shard[400_000] ^= 1
    four.nodes[0].shards[blob.hex()] = bytes(shard)
    report, data = await retrieve(four, blob)
    assert data == DATA
    assert kinds(report.faults) == {0: FaultKind.BAD_SHARD}
    assert report.seats == (1, 2)


async def test_a_seat_that_breaks_off_is_replaced_where_it_stands(four: Any, disperse: Any, retrieve: Any) -> None:
    blob = (await disperse(four)).certificate.terms.blob
    shard = four.nodes[1].shards[blob.hex()]

    async def break_off(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": str(len(shard))})
        await response.prepare(request)
        await response.write(shard[:200_000])
        assert request.transport is not None
        request.transport.abort()
        return response

    four.nodes[1].get_fault = break_off
    report, data = await retrieve(four, blob)
    assert data == DATA
    assert kinds(report.faults) == {1: FaultKind.UNREACHABLE}
    assert report.seats == (0, 1, 2)


async def test_a_slow_seat_does_not_slow_a_read(four: Any, disperse: Any, retrieve: Any) -> None:
    blob = (await disperse(four)).certificate.terms.blob
    shard = four.nodes[0].shards[blob.hex()]

    async def stall(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": str(len(shard))})
        await response.prepare(request)
        await response.write(shard[:70_000])
        await asyncio.Event().wait()
        return response

    four.nodes[0].get_fault = stall
    start = asyncio.get_running_loop().time()
    report, data = await retrieve(four, blob)
    assert data == DATA
    assert kinds(report.faults) == {0: FaultKind.TIMEOUT}
    assert asyncio.get_running_loop().time() - start < 3.0  # its own deadline is 5 s


async def test_two_lying_seats_leave_nothing_behind(four: Any, disperse: Any, retrieve: Any, tmp_path: Path) -> None:
    blob = (await disperse(four)).certificate.terms.blob
    for index in (0, 1, 3):
        four.nodes[index].shards[blob.hex()] = bytes(len(four.nodes[index].shards[blob.hex()]))
    with pytest.raises(NotEnoughShards) as caught:
        await retrieve(four, blob)
    assert set(kinds(caught.value.faults).values()) == {FaultKind.BAD_SHARD}
    assert list_names(tmp_path) == []


async def test_a_badly_encoded_blob_is_inconsistent_for_every_reader(four: Any, retrieve: Any, tmp_path: Path) -> None:
    """Nodes that check nothing have kept it: the reader's verdict is the same whichever shards it takes."""
    encoded = encode_blob(DATA, num_data=2, num_shards=4, leaf_bytes=65_536)
    shards = [bytearray(b"".join(pieces)) for pieces in encoded.shards]
    shards[3][50] ^= 1
    roots = tuple(compute_shard_root(shard, leaf_bytes=65_536) for shard in shards)
    header = dataclasses.replace(encoded.header, shard_roots=roots)
    seed = make_seed(header)
    header = header.with_folds(tuple(compute_fold(seed, bytes(shard)) for shard in shards[:2]))
    blob = compute_blob_id(header)
    for node, shard in zip(four.nodes, shards, strict=True):
        node.shards[blob.hex()], node.headers[blob.hex()] = bytes(shard), header
    texts = set()
    for dead in ([], [0], [1], [0, 1]):
        for node in four.nodes:
            node.get_fault = refuse_reads(four) if node.index in dead else None
        with pytest.raises(InconsistentBlob) as caught:
            await retrieve(four, blob)
        texts.add(str(caught.value))
        evidence = caught.value.evidence
        assert evidence is not None
        assert len(evidence.seats) == 2
        assert evidence.expected_root == roots[evidence.shard] != evidence.computed_root
    assert len(texts) == 1
    assert list_names(tmp_path) == []


def refuse_reads(nodes: Any) -> Any:
    async def refuse(_: web.Request) -> web.StreamResponse:
        return web.Response(status=404, text="gone")

    return refuse


async def test_a_seat_that_takes_nothing_is_left_behind(four: Any, disperse: Any, fakes: Any) -> None:
    async def take_nothing(request: web.Request) -> web.StreamResponse | None:
        assert request.transport is not None
        request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.transport.pause_reading()  # type: ignore[attr-defined]
        await asyncio.Event().wait()
        return None

    four.nodes[2].put_fault = take_nothing
    data = random.Random(9).randbytes(40 * STRIPE)  # more than sockets buffer
    with mock.patch.object(slab_feed, "WINDOW_SLABS", 2):
        dispersal = await disperse(four, MemorySource(data))
    assert kinds(dispersal.faults) == {2: FaultKind.TIMEOUT}
    verify_certificate(dispersal.certificate, four.committee, genesis_hash=fakes.GENESIS, height=Height(1))


async def test_tried_again_only_missing_shards_are_sent(four: Any, disperse: Any, fakes: Any) -> None:
    """Case 69: half of the seats have their shard when the first try ends."""

    async def refuse(_: web.Request) -> web.StreamResponse:
        answer: web.StreamResponse = fakes.refuse(507, Refusal.FULL, "0 bytes left")
        return answer

    for index in (1, 2):
        four.nodes[index].put_fault = refuse
    with pytest.raises(NotEnoughReceipts, match=r"seat 1 .*507 Full: 0 bytes left"):
        await disperse(four)
    for node in four.nodes:
        node.put_fault = None
    before = [node.num_body_bytes for node in four.nodes]
    dispersal = await disperse(four)
    assert dispersal.faults == ()
    sent = [node.num_body_bytes - old for node, old in zip(four.nodes, before, strict=True)]
    shard_bytes = blob_module.compute_shard_bytes(len(DATA), 2)
    assert sent == [0, shard_bytes, shard_bytes, 0]


def reset_in_the_middle(node: Any, *, times: int, after_bytes: int = 50_000) -> list[int]:
    """Let a node cut the connection in the middle of a shard, so many times; return the list of its cuts."""
    cuts: list[int] = []

    async def reset(request: web.Request) -> web.StreamResponse | None:
        assert request.transport is not None
        if len(cuts) == times:
            return None
        cuts.append(request.content_length or 0)
        request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        await request.content.readexactly(after_bytes)
        request.transport.abort()
        return web.Response(status=500)

    node.put_fault = reset
    return cuts


@pytest.mark.parametrize("size", [200_000, len(DATA)], ids=["in memory", "slab by slab"])
async def test_connections_that_are_reset_cost_no_quorum(four: Any, disperse: Any, fakes: Any, size: int) -> None:
    """Two of four: what is left is sent once more, and who has its shard is not asked again."""
    cuts = [reset_in_the_middle(four.nodes[index], times=1) for index in (1, 2)]
    dispersal = await disperse(four, MemorySource(DATA[:size]))
    assert [len(each) for each in cuts] == [1, 1]
    verify_certificate(dispersal.certificate, four.committee, genesis_hash=fakes.GENESIS, height=Height(1))
    assert dispersal.faults == ()
    shard_bytes = blob_module.compute_shard_bytes(size, 2)
    assert [node.num_body_bytes for node in four.nodes] == [shard_bytes] * 4


async def test_a_body_that_is_opened_again_holds_nobody_back(four: Any, disperse: Any, fakes: Any) -> None:
    """An HTTP library sends again by itself where the connection is not new: the first slabs are gone by then."""
    reset_in_the_middle(four.nodes[1], times=1, after_bytes=500_000)
    since = asyncio.get_running_loop().time()
    dispersal = await disperse(four)
    assert asyncio.get_running_loop().time() - since < 4.0  # the deadline is 5 s and more
    assert kinds(dispersal.faults) in ({}, {1: FaultKind.UNREACHABLE})
    verify_certificate(dispersal.certificate, four.committee, genesis_hash=fakes.GENESIS, height=Height(1))


async def test_connections_that_are_reset_again_and_again_end_it(four: Any, disperse: Any) -> None:
    cuts = [reset_in_the_middle(four.nodes[index], times=9) for index in (1, 2)]
    with pytest.raises(NotEnoughReceipts) as caught:
        await disperse(four)
    assert all(2 <= len(each) <= 4 for each in cuts), "the HTTP library asks once more by itself"
    assert kinds(caught.value.faults) == {1: FaultKind.UNREACHABLE, 2: FaultKind.UNREACHABLE}


async def test_dead_seats_are_not_sent_to_again(four: Any, disperse: Any) -> None:
    for index in (1, 2):
        await four.kill(index)
    asked = reset_in_the_middle(four.nodes[0], times=0)
    with (
        mock.patch.object(SlabFeed, "run", autospec=True, side_effect=SlabFeed.run) as runs,
        pytest.raises(NotEnoughReceipts) as caught,
    ):
        await disperse(four)
    assert (runs.call_count, asked) == (1, [])
    assert {1, 2} <= set(kinds(caught.value.faults))


async def test_a_full_disk_names_the_file_and_leaves_none(
    four: Any, disperse: Any, retrieve: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = await disperse(four, MemorySource(DATA))

    def refuse(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", refuse)
    with pytest.raises(OSError, match="No space left") as caught:
        await retrieve(four, stored.certificate.terms.blob)
    said = describe_failure(caught.value)
    assert said.startswith(f"error: {tmp_path / 'out'}: No space left on device\nnext:  make room")
    assert list_names(tmp_path) == []


async def test_a_file_that_shrinks_certifies_nothing(four: Any, disperse: Any, tmp_path: Path) -> None:
    path = tmp_path / "in"
    path.write_bytes(DATA)
    with FileSource(path) as source:
        path.write_bytes(DATA[:1000])
        with pytest.raises(SourceChanged, match="ends at byte 1000, expected 1234567"):
            await disperse(four, source)
    assert all(node.shards == {} for node in four.nodes)


async def test_a_file_that_changes_between_readings_is_refused(four: Any, disperse: Any) -> None:
    class Changing(MemorySource):
        num_reads = 0

        def read_into(self, start: int, buffer: memoryview) -> None:
            super().read_into(start, buffer)
            self.num_reads += 1
            if self.num_reads > 60:
                buffer[:1] = b"x"

    with pytest.raises(NotEnoughReceipts, match="422"):
        await disperse(four, Changing(DATA))
