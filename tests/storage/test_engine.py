"""The engine: nothing is promised before it is durable, nothing is left of what failed."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from da.core.types import BlobId, Height, ShardIndex, Tier
from storage.core.errors import (
    DiskFailed,
    DiskFull,
    IndexFull,
    QuotaExceeded,
    RootMismatch,
    StoreBusy,
    UnknownShard,
    UploadInterrupted,
)
from storage.core.quota import compute_charge_bytes
from storage.core.records import ShardRecord
from storage.node import disk as disk_module
from storage.node import index as index_module
from storage.node.engine import StoreEngine
from storage.node.index import Index
from storage.node.trace import MemoryTrace

Open = Callable[..., StoreEngine]


def get_order(trace: MemoryTrace) -> list[str]:
    return [str(event["event"]) for event in trace.get_events()]


def test_a_hot_shard_is_synced_before_it_is_named_and_indexed(open_engine: Open, keep: Any, make_shard: Any) -> None:
    trace = MemoryTrace()
    engine = open_engine(trace=trace)
    keep(engine, make_shard(b"x" * 5_000, tier=Tier.HOT))
    assert get_order(trace) == ["admitted", "received", "synced", "renamed", "indexed"]


def test_the_sync_is_a_real_one(open_engine: Open, keep: Any, make_shard: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, str]] = []
    real = os.fdatasync

    def watched(fd: int) -> None:
        calls.append(("fdatasync", os.path.realpath(f"/proc/self/fd/{fd}")))
        real(fd)

    monkeypatch.setattr(disk_module.os, "fdatasync", watched)
    engine = open_engine()
    shard = make_shard(b"hot" * 1_000, tier=Tier.HOT)
    keep(engine, shard)
    assert any("/staging/" in path for _, path in calls)
    calls.clear()
    keep(engine, make_shard(b"temporary" * 1_000, tier=Tier.TEMPORARY))
    assert calls == []


def test_a_lost_hot_shard_that_comes_as_a_temporary_one_is_synced(
    open_engine: Open, keep: Any, make_shard: Any, with_terms: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, shard = open_engine(), make_shard(b"hot" * 1_000, tier=Tier.HOT)
    keep(engine, shard)
    engine.disk.get_body_path(shard.offer.blob, ShardIndex(0)).unlink()
    sizes: list[int] = []
    real = os.fdatasync

    def watched(fd: int) -> None:
        sizes.append(os.fstat(fd).st_size)
        real(fd)

    monkeypatch.setattr(disk_module.os, "fdatasync", watched)
    keep(engine, with_terms(shard, tier=Tier.TEMPORARY))
    assert engine.get_record(shard.offer.blob, ShardIndex(0)).tier is Tier.HOT
    assert len(shard.body) in sizes


def test_blocks_of_a_synced_body_are_found_a_little_ahead(
    open_engine: Open, make_shard: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, body = open_engine(), os.urandom(7 << 20)
    real, asked = os.posix_fallocate, list[tuple[int, int]]()
    monkeypatch.setattr(
        disk_module.os, "posix_fallocate", lambda fd, at, length: (asked.append((at, length)), real(fd, at, length))
    )
    for tier in (Tier.TEMPORARY, Tier.HOT):
        shard = make_shard(body, tier=tier)
        with engine.upload(shard.offer) as upload:
            for at in range(0, len(body), 1 << 20):
                upload.write(body[at : at + (1 << 20)])
                ahead = upload.staged.path.stat().st_size - upload.staged.num_bytes
                assert 0 <= ahead <= (disk_module.AHEAD_BYTES if tier is Tier.HOT else 0)
            engine.commit(upload)
        assert bool(asked) is (tier is Tier.HOT)
    assert [at for at, _ in asked] == [0, 3 << 20, 6 << 20]
    assert sum(length for _, length in asked) == len(body)
    assert engine.disk.get_body_path(shard.offer.blob, ShardIndex(0)).read_bytes() == body


@pytest.mark.parametrize("code", [errno.EOPNOTSUPP, errno.EINVAL])
def test_a_file_system_that_finds_no_blocks_ahead_is_asked_once(
    open_engine: Open, keep: Any, make_shard: Any, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    num_calls = 0

    def refuse(*_: int) -> None:
        nonlocal num_calls
        num_calls += 1
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(disk_module.os, "posix_fallocate", refuse)
    engine, shard = open_engine(), make_shard(os.urandom(5 << 20))
    with engine.upload(shard.offer) as upload:
        for at in range(0, len(shard.body), 1 << 20):
            upload.write(shard.body[at : at + (1 << 20)])
        engine.commit(upload)
    assert num_calls == 1
    assert engine.get_record(shard.offer.blob, ShardIndex(0)).shard_bytes == 5 << 20


def test_what_was_kept_is_there_after_a_new_start(open_engine: Open, keep: Any, make_shard: Any) -> None:
    shard = make_shard(os.urandom(10_000))
    engine = open_engine()
    keep(engine, shard)
    engine = open_engine()
    record = engine.get_record(shard.offer.blob, ShardIndex(0))
    assert (record.expiry, record.tier, record.shard_bytes) == (1_000, Tier.HOT, 10_000)
    assert engine.disk.get_body_path(shard.offer.blob, ShardIndex(0)).read_bytes() == shard.body
    assert engine.get_header(shard.offer.blob) == shard.offer.header_bytes
    assert engine.get_quota().used_bytes == compute_charge_bytes(10_000)


def test_terms_that_can_not_be_read_are_a_loss_and_no_failure(open_engine: Open, keep: Any, make_shard: Any) -> None:
    engine, shard = open_engine(), make_shard(os.urandom(10_000))
    keep(engine, shard)
    path = engine.disk.get_body_path(shard.offer.blob, shard.offer.shard).with_suffix(".terms")
    for damage in ("junk", "pipe"):
        path.unlink()
        os.mkfifo(path) if damage == "pipe" else path.write_bytes(b"junk")
        with pytest.raises(UnknownShard):
            engine.get_header(shard.offer.blob)
        assert engine.losses.get_counts() == {"damaged": 1}


def test_an_empty_shard_is_a_shard(open_engine: Open, keep: Any, make_shard: Any) -> None:
    engine, shard = open_engine(), make_shard(b"")
    keep(engine, shard)
    assert engine.get_record(shard.offer.blob, ShardIndex(0)).shard_bytes == 0


@pytest.mark.parametrize("body", [b"y" * 4_999, b"x" * 4_999 + b"z"])
def test_invalid_body_leaves_nothing(
    open_engine: Open, keep: Any, make_shard: Any, get_files: Any, tmp_path: Path, body: bytes
) -> None:
    engine, shard = open_engine(), make_shard(b"x" * 5_000)
    with pytest.raises((RootMismatch, UploadInterrupted)):
        keep(engine, replace(shard, body=body))
    assert get_files(tmp_path / "home") == {}
    quota = engine.get_quota()
    assert (quota.used_bytes, quota.reserved_bytes) == (0, 0)
    with pytest.raises(UnknownShard):
        engine.get_record(shard.offer.blob, ShardIndex(0))


def test_a_body_that_is_too_long_is_cut_off(open_engine: Open, make_shard: Any) -> None:
    engine, shard = open_engine(), make_shard(b"x" * 100)
    with pytest.raises(UploadInterrupted, match="101 of 100"), engine.upload(shard.offer) as upload:
        upload.write(b"x" * 101)


def test_the_same_shard_twice_counts_once(open_engine: Open, keep: Any, make_shard: Any, with_terms: Any) -> None:
    engine, shard = open_engine(), make_shard(b"x" * 5_000)
    keep(engine, shard)
    keep(engine, with_terms(shard, expiry=Height(2_000)))
    assert engine.index.get_totals().num_shards == 1
    assert engine.get_quota().used_bytes == compute_charge_bytes(5_000)
    assert engine.get_record(shard.offer.blob, ShardIndex(0)).expiry == 2_000


def test_renewal_keeps_every_promise(open_engine: Open, keep: Any, make_shard: Any, with_terms: Any) -> None:
    trace = MemoryTrace()
    engine = open_engine(trace=trace)
    shard = make_shard(b"x" * 5_000, tier=Tier.TEMPORARY, expiry=500)
    assert not engine.renew(shard.offer)
    keep(engine, shard)
    assert engine.renew(with_terms(shard, tier=Tier.HOT, expiry=Height(300)).offer)
    record = engine.get_record(shard.offer.blob, ShardIndex(0))
    assert (record.tier, record.expiry) == (Tier.HOT, 500)
    assert get_order(trace)[-2:] == ["synced", "indexed"]
    assert engine.renew(with_terms(shard, tier=Tier.TEMPORARY, expiry=Height(900)).offer)
    record = engine.get_record(shard.offer.blob, ShardIndex(0))
    assert (record.tier, record.expiry) == (Tier.HOT, 900)
    assert engine.disk.load_terms(shard.offer.blob, ShardIndex(0)).expiry == 900


def test_a_shard_whose_file_is_lost_is_not_renewed_but_taken_again(
    open_engine: Open, keep: Any, make_shard: Any
) -> None:
    engine, shard = open_engine(), make_shard(b"x" * 5_000)
    keep(engine, shard)
    engine.disk.get_body_path(shard.offer.blob, ShardIndex(0)).unlink()
    with pytest.raises(UnknownShard):
        engine.get_record(shard.offer.blob, ShardIndex(0))
    assert not engine.renew(shard.offer)
    keep(engine, shard)
    assert engine.get_record(shard.offer.blob, ShardIndex(0)).shard_bytes == 5_000
    assert engine.index.get_totals().num_shards == 1


def test_reservations_block_and_come_back(open_engine: Open, make_shard: Any) -> None:
    engine = open_engine(capacity_bytes=3 << 20)
    first, second = make_shard(b"a" * (2 << 20)), make_shard(b"b" * (2 << 20))
    with engine.upload(first.offer):
        with pytest.raises(StoreBusy), engine.upload(second.offer):
            pytest.fail("there was no room")
        assert engine.get_quota().reserved_bytes == compute_charge_bytes(2 << 20)
    with engine.upload(second.offer):
        pass
    assert engine.get_quota().reserved_bytes == 0


def test_a_full_store_refuses_and_still_reads(open_engine: Open, keep: Any, make_shard: Any) -> None:
    engine = open_engine(capacity_bytes=3 << 20)
    first = make_shard(b"a" * (2 << 20))
    keep(engine, first)
    with pytest.raises(QuotaExceeded, match="of 3145728 are used"):
        keep(engine, make_shard(b"b" * (2 << 20)))
    assert engine.get_record(first.offer.blob, ShardIndex(0))


def test_free_space_is_checked_before_the_body(open_engine: Open, make_shard: Any) -> None:
    engine = open_engine(floor_bytes=1 << 62)
    with pytest.raises(DiskFull), engine.upload(make_shard(b"x").offer):
        pytest.fail("there was no room")


def test_a_disk_that_fills_up_meanwhile(
    open_engine: Open, keep: Any, make_shard: Any, get_files: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, shard = open_engine(), make_shard(b"x" * 5_000)

    def full(fd: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(disk_module.os, "write", full)
    with pytest.raises(DiskFull):
        keep(engine, shard)
    assert get_files(tmp_path / "home") == {}
    assert engine.get_quota().reserved_bytes == 0


def test_a_failed_index_write_fails_the_put(
    open_engine: Open, keep: Any, make_shard: Any, get_files: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 54: an index error is no log line, and leaves no bytes behind."""
    engine, shard = open_engine(), make_shard(b"x" * 5_000)

    def broken(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(engine.index, "put", broken)
        with pytest.raises(DiskFailed, match="Input/output"):
            keep(engine, shard)
    assert get_files(tmp_path / "home") == {}
    assert engine.get_quota().used_bytes == 0
    keep(engine, shard)
    assert engine.get_record(shard.offer.blob, ShardIndex(0))


def test_a_full_map_refuses_reads_deletes_and_grows_at_restart(
    open_engine: Open, keep: Any, make_shard: Any, get_files: Any, tmp_path: Path
) -> None:
    """Case 73: the index's map is full in production."""
    engine = open_engine(map_bytes=1 << 17)
    kept: list[Any] = []

    def fill() -> None:
        while len(kept) < 5_000:
            shard = make_shard(len(kept).to_bytes(4, "big"), tier=Tier.TEMPORARY)
            keep(engine, shard)
            kept.append(shard)

    with pytest.raises(IndexFull, match="grows when the node restarts"):
        fill()
    assert len(get_files(tmp_path / "home")) == 2 * len(kept)
    assert engine.get_record(kept[0].offer.blob, ShardIndex(0))
    for shard in kept[:20]:
        engine.index.delete(shard.offer.blob, ShardIndex(0))
        engine.disk.delete(shard.offer.blob, ShardIndex(0))
    assert engine.index.get_totals().num_shards == len(kept) - 20
    engine = open_engine(map_bytes=1 << 17)
    assert engine.index.get_map_bytes() > 1 << 17
    assert engine.index.get_totals().num_shards == len(kept) - 20
    for number in range(5_000, 5_200):
        keep(engine, make_shard(number.to_bytes(4, "big"), tier=Tier.TEMPORARY))
    assert engine.index.get_totals().num_shards == len(kept) + 180


def test_aborted_uploads_give_their_room_back(
    open_engine: Open, keep: Any, make_shard: Any, get_files: Any, tmp_path: Path
) -> None:
    """Case 70, without the sockets: a thousand of them."""
    engine, shard = open_engine(capacity_bytes=1 << 20), make_shard(b"x" * 500_000)
    wrong = replace(shard, body=b"y" + shard.body[1:])
    for number in range(1_000):
        with pytest.raises((RootMismatch, UploadInterrupted)):
            keep(engine, wrong if number % 100 == 0 else replace(shard, body=shard.body[:number]))
    quota = engine.get_quota()
    assert (quota.used_bytes, quota.reserved_bytes) == (0, 0)
    assert get_files(tmp_path / "home") == {}


def test_index_pages_through_many_records(tmp_path: Path, make_shard: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "PAGE_RECORDS", 7)
    index = Index(tmp_path / "index", map_bytes=1 << 24)
    record = ShardRecord(
        tier=Tier.HOT,
        epoch=make_shard(b"").offer.epoch,
        expiry=Height(5),
        release=Height(0),
        due=Height(9),
        shard_bytes=1,
    )
    names = [BlobId(number.to_bytes(32, "big")) for number in range(50)]
    for name in names:
        index.put(name, ShardIndex(1), record)
    assert [key[0] for key in index.iterate_keys()] == names
    assert len(index.get_due(Height(9), limit=20)) == 20
    assert index.get_due(Height(8), limit=100) == []
    assert index.get_shards_of(names[7]) == [ShardIndex(1)]
    index.close()
