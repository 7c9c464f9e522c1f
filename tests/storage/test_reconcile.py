"""Disk and index are brought to agree at start; what proves itself is found again, what doesn't is put aside."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from da.core.types import Height, ShardIndex, Tier
from storage.core.quota import compute_charge_bytes
from storage.node import boot
from storage.node.body import FileReader
from storage.node.doctor import diagnose
from storage.node.engine import StoreEngine
from storage.node.proofs import is_intact
from storage.node.reconcile import reconcile

Open = Callable[..., StoreEngine]
SEAT = ShardIndex(0)


def test_after_an_orderly_stop_there_is_nothing_to_do(open_engine: Open, keep: Any, make_shard: Any) -> None:
    engine = open_engine()
    for number in range(5):
        keep(engine, make_shard(os.urandom(1_000 * number)))
    assert reconcile(open_engine()).get_findings() == {}


def test_shards_on_disk_are_found_without_an_index(
    open_engine: Open, keep: Any, make_shard: Any, tmp_path: Path
) -> None:
    """Case 66: remove the index, restart: all found."""
    engine = open_engine()
    shards = [make_shard(os.urandom(size), expiry=500 + size) for size in (0, 1, 1_024, 100_000)]
    for shard in shards:
        keep(engine, shard)
    used = engine.get_quota().used_bytes
    engine.close()
    shutil.rmtree(tmp_path / "home" / "index")
    engine = open_engine()
    assert reconcile(engine).get_findings() == {"reindexed": 4}
    assert engine.get_quota().used_bytes == used == sum(compute_charge_bytes(len(s.body)) for s in shards)
    for shard in shards:
        record = engine.get_record(shard.offer.blob, SEAT)
        assert (record.expiry, record.tier) == (shard.offer.expiry, Tier.HOT)
    assert reconcile(engine).get_findings() == {}


def test_half_written_uploads_and_lone_terms_go(
    open_engine: Open, make_shard: Any, get_files: Any, tmp_path: Path
) -> None:
    engine, shard = open_engine(), make_shard(b"x" * 100)
    (tmp_path / "home" / "staging" / "dead.part").write_bytes(b"half")
    engine.disk.save_terms(shard.offer.blob, shard.offer.make_terms(), is_synced=False)
    assert reconcile(engine).get_findings() == {"staging_removed": 1, "terms_removed": 1}
    assert get_files(tmp_path / "home") == {}


def test_damaged_bytes_are_put_aside_and_not_served(
    open_engine: Open, keep: Any, make_shard: Any, tmp_path: Path
) -> None:
    engine, shard, good = open_engine(), make_shard(b"x" * 3_000), make_shard(b"good")
    keep(engine, shard)
    keep(engine, good)
    engine.close()
    shutil.rmtree(tmp_path / "home" / "index")
    path = engine.disk.get_body_path(shard.offer.blob, SEAT)
    path.write_bytes(b"x" * 2_999 + b"y")
    engine = open_engine()
    assert reconcile(engine).get_findings() == {"reindexed": 1, "quarantined": 1}
    assert engine.index.get(shard.offer.blob, SEAT) is None
    assert engine.get_quota().used_bytes == compute_charge_bytes(4)
    assert len(list((tmp_path / "home" / "quarantine").iterdir())) == 2


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_file_is_put_aside(
    open_engine: Open, keep: Any, make_shard: Any, make: Callable[[Path], None]
) -> None:
    """A pipe would be waited for, and neither keeps the node from starting, or doctor from its end."""
    engine, shard, good = open_engine(), make_shard(b"x" * 3_000), make_shard(b"good")
    keep(engine, shard)
    keep(engine, good)
    path = engine.disk.get_body_path(shard.offer.blob, SEAT)
    path.unlink()
    make(path)
    found = diagnose(engine)
    assert (found.good, len(found.missing) + len(found.damaged)) == (1, 1)
    engine = open_engine()
    assert reconcile(engine).quarantined == 1
    keep(engine, shard)
    assert is_intact(engine, shard.offer.blob, SEAT)


def test_a_bad_sector_is_no_reason_not_to_start(
    open_engine: Open, keep: Any, make_shard: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power cut all temporary shards are read: one that the medium can't give waits for the scrubber."""
    engine, shard, good = open_engine(), make_shard(b"x" * 3_000, tier=Tier.TEMPORARY), make_shard(b"good")
    keep(engine, shard)
    keep(engine, good)
    real = FileReader.read

    def fail(reader: FileReader, start: int, num_bytes: int) -> bytes:
        if os.fstat(reader._fd).st_size == 3_000:
            raise OSError(errno.EIO, "Input/output error")
        return real(reader, start, num_bytes)

    monkeypatch.setattr(FileReader, "read", fail)
    engine = open_engine()
    assert reconcile(engine, is_new_boot=True).get_findings() == {"unreachable": 1}
    assert engine.health.num_failures == 1
    assert engine.get_record(shard.offer.blob, SEAT)
    found = diagnose(engine)
    assert (found.good, len(found.damaged)) == (1, 1)


def test_a_cut_file_and_a_lost_one_are_counted_as_lost(open_engine: Open, keep: Any, make_shard: Any) -> None:
    engine, cut, lost = open_engine(), make_shard(b"c" * 3_000), make_shard(b"l" * 3_000)
    keep(engine, cut)
    keep(engine, lost)
    os.truncate(engine.disk.get_body_path(cut.offer.blob, SEAT), 1_000)
    engine.disk.get_body_path(lost.offer.blob, SEAT).unlink()
    engine = open_engine()
    found = reconcile(engine)
    assert (found.quarantined, found.lost, found.terms_removed) == (1, 2, 1)
    assert set(found.lost_blobs) == {cut.offer.blob.hex(), lost.offer.blob.hex()}
    assert engine.get_quota().used_bytes == 0
    assert engine.index.get_totals().num_shards == 0
    keep(engine, lost)
    assert engine.get_record(lost.offer.blob, SEAT)


def test_terms_of_another_blob_do_not_pass(open_engine: Open, keep: Any, make_shard: Any, with_terms: Any) -> None:
    engine, shard, other = open_engine(), make_shard(b"x" * 100), make_shard(b"y" * 100)
    keep(engine, shard)
    engine.index.delete(shard.offer.blob, SEAT)
    engine.disk.save_terms(shard.offer.blob, other.offer.make_terms(), is_synced=False)
    assert reconcile(engine).quarantined == 1


def test_wrong_counters_are_set_right(open_engine: Open, keep: Any, make_shard: Any) -> None:
    engine, shard = open_engine(), make_shard(b"x" * 100)
    keep(engine, shard)
    with engine.index._env.write() as txn:
        txn.put(b"used_bytes", (10**15).to_bytes(8, "big"), db=engine.index._counters)
    found = reconcile(engine)
    assert not found.are_counters_right
    assert engine.get_quota().used_bytes == compute_charge_bytes(100)


def test_a_deletion_that_was_cut_is_finished(open_engine: Open, keep: Any, make_shard: Any, get_files: Any) -> None:
    engine, shard = open_engine(), make_shard(b"x" * 100)
    keep(engine, shard)
    engine.disk.delete(shard.offer.blob, SEAT)
    found = reconcile(engine)
    assert found.lost == 1
    assert engine.index.get(shard.offer.blob, SEAT) is None
    assert engine.index.get_due(Height(10**9), limit=10) == []
    assert get_files(engine.disk.home) == {}


def test_after_a_power_cut_only_what_was_never_synced_is_hashed_again(
    open_engine: Open, keep: Any, make_shard: Any
) -> None:
    engine = open_engine()
    good, torn = make_shard(b"g" * 3_000, tier=Tier.TEMPORARY), make_shard(b"t" * 3_000, tier=Tier.TEMPORARY)
    hot = make_shard(b"h" * 3_000, tier=Tier.HOT)
    for shard in (good, torn, hot):
        keep(engine, shard)
    engine.disk.get_body_path(torn.offer.blob, SEAT).write_bytes(bytes(3_000))
    assert reconcile(open_engine()).get_findings() == {}, "no power cut: lengths are enough"
    engine = open_engine()
    found = reconcile(engine, is_new_boot=True)
    assert (found.quarantined, found.lost) == (1, 1)
    assert not engine.renew(torn.offer)
    assert engine.renew(good.offer)
    assert engine.renew(hot.offer)


def test_a_new_boot_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    boot_id = tmp_path / "boot_id"
    boot_id.write_text("one\n")
    monkeypatch.setattr(boot, "_BOOT_ID", boot_id)
    assert boot.is_new_boot(tmp_path)
    boot.note_boot(tmp_path)
    assert not boot.is_new_boot(tmp_path)
    boot_id.write_text("two\n")
    assert boot.is_new_boot(tmp_path)
    boot_id.unlink()
    assert boot.is_new_boot(tmp_path), "where it can't be known, it is assumed"
