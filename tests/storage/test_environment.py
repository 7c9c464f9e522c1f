"""LMDB on a disk that fails: cut files, foreign files, a limit on a file's size, a root page that can't be written."""

from __future__ import annotations

import os
import random
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest import mock

import lmdb
import pytest
from typer.testing import CliRunner

from da.core.types import BlobId, Epoch, Height, ShardIndex, Tier
from storage import node_cli
from storage.core.errors import DiskFailed, DiskFull
from storage.core.records import ShardRecord, ShardTerms
from storage.node.doctor import find_broken_databases
from storage.node.environment import Environment
from storage.node.index import Index
from storage.node.lmdb_pages import is_complete
from storage.node.proofs import is_intact
from storage.node.reconcile import reconcile
from storage.node.small import SmallShard, SmallShards

SEAT = ShardIndex(0)
BODY = bytes(700)


def make_record(number: int) -> ShardRecord:
    return ShardRecord(
        tier=Tier.HOT, epoch=Epoch(1), expiry=Height(500), release=Height(0), due=Height(500 + number), shard_bytes=1
    )


def make_small(number: int) -> SmallShard:
    terms = ShardTerms(
        shard=SEAT, tier=Tier.HOT, epoch=Epoch(1), expiry=Height(500), shard_bytes=len(BODY), header=b"header"
    )
    return SmallShard(blob=name(number), terms=terms, body=BODY)


def name(number: int) -> BlobId:
    return BlobId(random.Random(number).randbytes(32))


def cuts(whole: bytes) -> list[int]:
    """Return lengths to cut a file to: at and beside the borders of its pages."""
    pages = range(0, len(whole), 4096)
    return sorted(
        {min(len(whole) - 1, max(0, page + off)) for page in [*pages][:: max(1, len(pages) // 12)] for off in (0, 9)}
    )


def test_an_index_that_was_cut_anywhere_is_set_aside(tmp_path: Path) -> None:
    """Touching a page that is not there would end the process."""
    path = tmp_path / "index"
    index = Index(path, map_bytes=1 << 22)
    for number in range(300):
        index.put(name(number), SEAT, make_record(number))
    index.close()
    whole = (path / "data.mdb").read_bytes()
    for length in cuts(whole):
        shutil.rmtree(path)
        path.mkdir()
        (path / "data.mdb").write_bytes(whole[:length])
        index = Index(path, map_bytes=1 << 22)
        assert index.get_totals().num_shards == 0
        index.put(name(1), SEAT, make_record(1))
        assert [blob for blob, _, _ in index.iterate_keys()] == [name(1)]
        index.close()
        if length:  # an empty file is a new one
            (aside,) = tmp_path.glob("index.broken.*")
            assert (aside / "data.mdb").read_bytes()[:length] == whole[:length]
            shutil.rmtree(aside)


def test_small_shards_whose_file_was_cut_are_set_aside_and_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "small"
    small = SmallShards(path)
    for start in range(0, 300, 30):
        small.put_many([make_small(number) for number in range(start, start + 30)], is_synced=True)
    small.close()
    data = path / "synced" / "data.mdb"
    whole = data.read_bytes()
    for length in cuts(whole)[1:]:
        data.write_bytes(whole[:length])
        small = SmallShards(path)
        assert list(small.iterate_keys()) == []
        small.put_many([make_small(1_000)], is_synced=True)
        assert list(small.iterate_keys()) == [(name(1_000), SEAT)]
        small.close()
    assert len(list(path.glob("synced.broken.*"))) == len(cuts(whole)) - 1


def test_pages_that_were_never_needed_may_be_missing(tmp_path: Path) -> None:
    """LMDB does not write a page that a transaction has taken and given back: such a file is whole."""
    path = tmp_path / "short"
    environment = Environment(path, map_bytes=1 << 22)
    for number in range(40):
        with environment.write() as txn:
            txn.put(b"%d" % number, bytes(3_000))
    for number in range(39, 4, -1):
        with environment.write() as txn:
            txn.delete(b"%d" % number)
    environment.close()
    data = path / "data.mdb"
    whole, shortest = data.read_bytes(), 0
    for length in range(4096 * 2, len(whole), 4096):
        data.write_bytes(whole[:length])
        if is_complete(data, 4096):
            shortest = length
            break
    assert 0 < shortest < len(whole), "the end of this file holds free pages only"
    environment = Environment(path, map_bytes=1 << 22)
    with environment.write() as txn:
        assert sorted(txn.cursor().iternext(values=False)) == [b"0", b"1", b"2", b"3", b"4"]
        for number in range(100):
            txn.put(b"new %d" % number, bytes(3_000))
    environment.close()
    assert list(tmp_path.glob("short.broken.*")) == []


def test_a_foreign_file_is_set_aside_and_the_shards_are_found_again(
    tmp_path: Path, open_engine: Any, make_shard: Any, keep: Any
) -> None:
    """Case 66, with a file that is there and broken."""
    engine = open_engine()
    shards = [make_shard(random.Random(seed).randbytes(5_000)) for seed in range(4)]
    for shard in shards:
        keep(engine, shard)
    engine.close()
    (tmp_path / "home" / "index" / "data.mdb").write_bytes(b"no database" * 1_000)
    engine = open_engine()
    assert reconcile(engine).reindexed == len(shards)
    assert all(is_intact(engine, shard.offer.blob, SEAT) for shard in shards)


@pytest.mark.parametrize("damage", ["foreign", "cut"])
def test_the_doctor_names_a_broken_database_and_changes_nothing(
    tmp_path: Path, open_engine: Any, make_shard: Any, keep: Any, damage: str
) -> None:
    engine = open_engine()
    keep(engine, make_shard(b"x" * 5_000))
    engine.close()
    home = tmp_path / "home"
    assert find_broken_databases(home) == []
    data = home / "index" / "data.mdb"
    data.write_bytes(b"no database" * 1_000 if damage == "foreign" else data.read_bytes()[: 3 * 4096])
    before = {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}
    done = CliRunner().invoke(node_cli.app, ["doctor", "--home", str(home)])
    assert done.exit_code == 7
    assert str(home / "index") in done.stderr
    assert "start the node" in done.stderr
    assert {path: path.read_bytes() for path in before} == before
    assert {path.name for path in home.rglob("*") if path.is_file()} - {path.name for path in before} == {"lock"}


@contextmanager
def limited(num_bytes: int) -> Iterator[None]:
    """Let no file of this process grow beyond a size."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_files_that_may_not_grow_are_a_full_disk(open_engine: Any, make_shard: Any, keep: Any) -> None:
    engine = open_engine()
    kept = [make_shard(random.Random(seed).randbytes(60_000)) for seed in range(3)]
    for shard in kept:
        keep(engine, shard)
    more = make_shard(random.Random(9).randbytes(60_000))
    tiny = make_shard(b"tiny")
    with limited(8_192):
        with pytest.raises(DiskFull):
            keep(engine, more)
        with pytest.raises(DiskFull):
            engine.keep_batch([tiny.offer], [memoryview(tiny.body)])
        with pytest.raises(DiskFull):  # its file fits, the index's pages don't
            keep(engine, tiny)
        assert all(is_intact(engine, shard.offer.blob, SEAT) for shard in kept)
        assert engine.get_quota().reserved_bytes == 0
    keep(engine, more)
    keep(engine, tiny)
    assert engine.index.get_totals().num_shards == 5


@contextmanager
def broken_root_page(path: Path) -> Iterator[None]:
    """Let LMDB's writes of its root pages fail: it has a descriptor of its own for them, the highest one."""
    links = {int(fd): Path(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")}
    fd = max(fd for fd, link in links.items() if link.exists() and link.samefile(path / "data.mdb"))
    saved, full = os.dup(fd), os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, fd)
    try:
        yield
    finally:
        with suppress(OSError):
            os.dup2(saved, fd)
        os.close(saved)
        os.close(full)


@pytest.mark.parametrize("num_failures", [0, 3])
def test_a_root_page_that_can_not_be_written_costs_no_more_than_the_answers_until_the_disk_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_failures: int
) -> None:
    """LMDB gives no answer at all after that; the environment is opened again, with what was there before."""
    path = tmp_path / "index"
    environment = Environment(path, map_bytes=1 << 20, tables=(b"records",))
    with environment.write() as txn:
        txn.put(b"before", b"1", db=environment.tables[b"records"])
    with broken_root_page(path), pytest.raises((DiskFull, DiskFailed)), environment.write() as txn:
        txn.put(b"lost", b"2", db=environment.tables[b"records"])
    with monkeypatch.context() as patched:
        if num_failures:
            patched.setattr(lmdb, "open", mock.Mock(side_effect=lmdb.DiskError("it can't be opened now")))
        for _ in range(num_failures):
            with pytest.raises(DiskFailed), environment.read() as txn:
                pass
    path.rename(tmp_path / "away")
    with suppress(DiskFailed), environment.read() as txn:
        assert txn.get(b"before", db=environment.tables[b"records"]) == b"1", "an empty one took its place"
    assert not path.exists()
    (tmp_path / "away").rename(path)
    with environment.read() as txn:
        assert txn.get(b"before", db=environment.tables[b"records"]) == b"1"
        assert txn.get(b"lost", db=environment.tables[b"records"]) is None
    with environment.write() as txn:
        txn.put(b"after", b"3", db=environment.tables[b"records"])
    environment.close()
