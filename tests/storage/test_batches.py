"""Batches of small shards: kept as a whole or not at all, read like any other, expired and found again."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any
from unittest import mock

import aiohttp
import pytest

from da.batch import BatchEntry, SmallBlob, encode_batch, encode_small_blobs
from da.client import AsyncBlobClient
from da.core.certificate import decode_certificate, encode_certificate, verify_certificate
from da.core.errors import NotEnoughReceipts
from da.core.scheme import compute_scheme
from da.core.types import Committee, Epoch, Height, Seat, ShardIndex, Tier
from da.protocol import BatchRequest, encode_batch_path
from storage.core.errors import QuotaExceeded, RootMismatch
from storage.core.expiry import Sweep
from storage.node import server, small
from storage.node.reconcile import reconcile
from storage.node.small import SmallShard
from storage.node.upload import ShardOffer

GENESIS_HASH = bytes(range(32))
BLOBS = [random.Random(index).randbytes(100 + 97 * index % 4000) for index in range(30)]


def make_offers(blobs: list[bytes], tier: Tier = Tier.HOT, expiry: int = 1000) -> tuple[list[Any], list[memoryview]]:
    coded = encode_small_blobs(blobs, compute_scheme(1), leaf_bytes=1024)
    return [make_offer(each, tier, expiry) for each in coded], [each.shards[0] for each in coded]


def make_offer(small: SmallBlob | BatchEntry, tier: Tier, expiry: int) -> ShardOffer:
    return ShardOffer(
        blob=small.blob,
        shard=ShardIndex(0),
        header=small.header,
        header_bytes=small.encoded_header,
        shard_bytes=small.header.size_bytes,
        tier=tier,
        epoch=Epoch(1),
        expiry=Height(expiry),
    )


def read(engine: Any, offer: ShardOffer) -> bytes:
    reader = engine.open_body(offer.blob, offer.shard)
    body: bytes = reader.read(0, 10_000)
    reader.close()
    return body


async def test_certified_over_sockets_and_read_back(serve: Any) -> None:
    async with serve() as node, AsyncBlobClient(deadline_seconds=5) as client:
        committee = Committee(epoch=Epoch(1), seats=(Seat(index=ShardIndex(0), key=node.key.public, url=node.url),))
        dispersal = await client.disperse_batch(
            BLOBS, committee=committee, genesis_hash=GENESIS_HASH, tier=Tier.TEMPORARY, expiry=Height(1000)
        )
        for data, certificate in zip(BLOBS, dispersal.certificates, strict=True):
            decoded = decode_certificate(encode_certificate(certificate))
            verify_certificate(decoded, committee, genesis_hash=GENESIS_HASH, height=Height(100))
            retrieved = await client.retrieve(certificate.terms.blob, committee=committee, max_bytes=10_000)
            assert retrieved.data == data
        assert [event["event"] for event in node.trace.get_events()] == ["batch", "signed-batch"]
        assert node.engine.index.get_totals().num_shards == len(BLOBS)


async def test_invalid_batches_keep_nothing(serve: Any) -> None:
    coded = encode_small_blobs(BLOBS, compute_scheme(1), leaf_bytes=1024)
    body = bytearray(encode_batch(coded, 0))
    path = encode_batch_path(BatchRequest(seat=ShardIndex(0), epoch=Epoch(1), tier=Tier.HOT, expiry=Height(1000)))
    with mock.patch.object(server, "MAX_BATCH_BYTES", 200_000):
        await check_invalid_batches(serve, coded, body, path)


async def check_invalid_batches(serve: Any, coded: list[SmallBlob], body: bytearray, path: str) -> None:
    async with serve() as node, aiohttp.ClientSession() as session:

        async def put(url: str, data: bytes) -> tuple[int, str]:
            async with session.put(node.url + url, data=data) as answer:
                return answer.status, await answer.text()

        body[-1] ^= 1
        for url, data, status, reason in [
            (path, bytes(body), 422, "RootMismatch"),
            (path, bytes(body[:-1]), 400, "batch ends in the shard of blob 29"),
            (path, b"", 400, "batch of 0 blobs"),
            (path, b"x" * 300_000, 413, "TooLarge"),
            (path.replace("epoch=1", "epoch=9"), encode_batch(coded, 0), 403, "NotMySeat"),
            (path.replace("/0?", "/3?"), encode_batch(coded, 0), 403, "NotMySeat"),
            (path.replace("expiry=1000", "expiry=1"), encode_batch(coded, 0), 410, "Expired"),
            (path.replace("tier=1", "tier=7"), encode_batch(coded, 0), 400, "tier 7"),
        ]:
            got = await put(url, data)
            assert got[0] == status, got
            assert reason in got[1]
        quota = node.engine.get_quota()
        assert (quota.used_bytes, quota.reserved_bytes) == (0, 0)
        assert (await put(path, encode_batch(coded, 0)))[0] == 200


async def test_a_full_node_refuses_the_whole_batch(serve: Any) -> None:
    async with serve(capacity_bytes=1 << 17) as node, AsyncBlobClient(deadline_seconds=5) as client:
        committee = Committee(epoch=Epoch(1), seats=(Seat(index=ShardIndex(0), key=node.key.public, url=node.url),))
        with pytest.raises(NotEnoughReceipts, match="507 Full"):
            await client.disperse_batch(
                BLOBS, committee=committee, genesis_hash=GENESIS_HASH, tier=Tier.HOT, expiry=Height(1000)
            )
        quota = node.engine.get_quota()
        assert (quota.used_bytes, quota.reserved_bytes) == (0, 0)


def test_kept_through_restarts_and_found_without_an_index(open_engine: Any, tmp_path: Path) -> None:
    offers, bodies = make_offers(BLOBS)
    engine = open_engine()
    engine.keep_batch(offers, bodies)
    used = engine.get_quota().used_bytes
    engine = open_engine()
    assert reconcile(engine).get_findings() == {}
    assert [read(engine, offer) for offer in offers] == BLOBS
    engine.close()
    shutil.rmtree(tmp_path / "home" / "index")
    engine = open_engine()
    assert reconcile(engine).get_findings() == {"reindexed": len(BLOBS)}
    assert engine.get_quota().used_bytes == used
    assert engine.get_header(offers[3].blob) == offers[3].header_bytes


def test_a_batch_cut_short_leaves_nothing(open_engine: Any) -> None:
    class Cut(Exception):
        pass

    def cut(point: str) -> None:
        if point == "after-rename":
            raise Cut

    offers, bodies = make_offers(BLOBS)
    engine = open_engine(fault=cut)
    with pytest.raises(Cut):
        engine.keep_batch(offers, bodies)
    quota = engine.get_quota()
    assert (quota.used_bytes, quota.reserved_bytes) == (0, 0)
    assert list(engine.disk.small.iterate_keys()) == []


def test_terms_grow_and_bytes_move_to_the_synced_database(open_engine: Any) -> None:
    engine = open_engine()
    offers, bodies = make_offers(BLOBS, Tier.TEMPORARY, expiry=500)
    engine.keep_batch(offers, bodies)
    assert not engine.disk.small.is_synced(offers[0].blob, ShardIndex(0))
    longer, _ = make_offers(BLOBS, Tier.HOT, expiry=900)
    engine.keep_batch(longer, bodies)
    record = engine.index.get(offers[0].blob, ShardIndex(0))
    assert (record.tier, record.expiry) == (Tier.HOT, 900)
    assert engine.disk.small.is_synced(offers[0].blob, ShardIndex(0))
    assert engine.renew(make_offers(BLOBS, Tier.HOT, expiry=950)[0][1])
    assert engine.index.get(offers[1].blob, ShardIndex(0)).expiry == 950
    assert len(list(engine.disk.small.iterate_keys())) == len(BLOBS)
    assert reconcile(open_engine()).get_findings() == {}


def test_expired_ones_go_and_give_their_room_back(open_engine: Any) -> None:
    engine = open_engine()
    offers, bodies = make_offers(BLOBS, expiry=200)
    engine.keep_batch(offers, bodies)
    due = engine.index.get_due(Height(10**6), limit=100)
    assert engine.apply_sweep(Sweep(delete=tuple(due), keep=()), height=Height(300), again=Height(400)) == len(BLOBS)
    assert engine.get_quota().used_bytes == 0
    assert list(engine.disk.small.iterate_keys()) == []


def test_altered_small_shards_are_not_served_after_a_lost_index(open_engine: Any, tmp_path: Path) -> None:
    engine = open_engine()
    offers, bodies = make_offers(BLOBS[:3])
    engine.keep_batch(offers, bodies)
    value = engine.disk.small.get(offers[0].blob, ShardIndex(0))
    engine.disk.small.delete(offers[0].blob, ShardIndex(0))
    altered = SmallShard(blob=offers[0].blob, terms=value[0], body=b"\0" * len(value[1]))
    engine.disk.small.put_many([altered], is_synced=True)
    engine.close()
    shutil.rmtree(tmp_path / "home" / "index")
    assert reconcile(open_engine()).get_findings() == {"reindexed": 2, "quarantined": 1}


def test_invalid_shard_in_the_engine(open_engine: Any) -> None:
    engine = open_engine(capacity_bytes=1 << 16)
    offers, bodies = make_offers(BLOBS[:2])
    with pytest.raises(RootMismatch):
        engine.keep_batch(offers, [bodies[0], memoryview(bytes(len(bodies[1])))])
    many, more = make_offers(BLOBS)
    with pytest.raises(QuotaExceeded):
        engine.keep_batch(many, more)
    assert engine.get_quota().reserved_bytes == 0


def test_the_map_grows_where_it_stands(open_engine: Any) -> None:
    blobs = [random.Random(index).randbytes(4096) for index in range(600)]
    offers, bodies = make_offers(blobs)
    with mock.patch.object(small, "FIRST_MAP_BYTES", 1 << 18):
        engine = open_engine()
    engine.keep_batch(offers, bodies)
    assert [read(engine, offer) for offer in offers] == blobs


def test_a_broken_temporary_database_is_set_aside_and_counted(open_engine: Any, tmp_path: Path) -> None:
    """A power cut may do that; hot shards are in another database, and stay."""
    engine = open_engine()
    temporary, bodies = make_offers(BLOBS[:3], Tier.TEMPORARY)
    engine.keep_batch(temporary, bodies)
    hot, more = make_offers(BLOBS[3:5], Tier.HOT)
    engine.keep_batch(hot, more)
    engine.close()
    (tmp_path / "home" / "small" / "written" / "data.mdb").write_bytes(b"\xff" * 8192)
    engine = open_engine()
    found = reconcile(engine)
    assert (found.lost, found.reindexed) == (3, 0)
    assert [read(engine, offer) for offer in hot] == BLOBS[3:5]
    assert [path.name.split(".")[:2] for path in (tmp_path / "home" / "small").glob("*.broken.*")] == [
        ["written", "broken"]
    ]
