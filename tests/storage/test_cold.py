"""Cold shards in the engine: on the shelf, through crashes and changes of tier; nothing lost, nothing left behind."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from obstore.store import MemoryStore

from da.core.types import BlobId, Height, ShardIndex, Tier
from storage.core.errors import ShelfUnavailable
from storage.core.expiry import GRACE_BLOCKS
from storage.node.bucket import BucketShelf
from storage.node.collector import collect
from storage.node.engine import StoreEngine
from storage.node.reconcile import reconcile

SEAT = ShardIndex(0)
Open = Callable[..., StoreEngine]


def read(engine: StoreEngine, blob: BlobId) -> bytes:
    reader = engine.open_body(blob, SEAT)
    try:
        return reader.read(0, 1 << 20)
    finally:
        reader.close()


@pytest.mark.parametrize("is_bucket", [False, True])
def test_a_cold_shard_lives_on_the_shelf(
    open_engine: Open, keep: Any, make_shard: Any, chain: Any, get_files: Any, tmp_path: Path, is_bucket: bool
) -> None:
    shelf = BucketShelf(MemoryStore()) if is_bucket else None
    engine, shard = open_engine(shelf=shelf), make_shard(b"c" * 30_000, tier=Tier.COLD)
    keep(engine, shard)
    blob = shard.offer.blob
    assert not engine.disk.get_body_path(blob, SEAT).exists()
    assert engine.get_record(blob, SEAT).tier is Tier.COLD
    assert read(engine, blob) == shard.body
    shutil.copytree(tmp_path / "home" / "index", tmp_path / "kept")
    for is_index_lost in (False, True):
        engine.close()
        if is_index_lost:
            shutil.rmtree(tmp_path / "home" / "index")
        engine = open_engine(shelf=shelf)
        found = reconcile(engine)
        assert (found.reindexed, found.lost, found.terms_removed) == (int(is_index_lost), 0, 0)
        assert read(engine, blob) == shard.body
    assert collect(engine, chain, Height(1_000 + GRACE_BLOCKS)) == 1
    assert list(engine.disk.shelf.iterate_keys()) == []
    assert engine.get_quota().used_bytes == 0
    assert get_files(tmp_path / "home") == {}


@pytest.mark.parametrize("is_small", [False, True])
@pytest.mark.parametrize(
    ("first", "then", "kept"),
    [
        (Tier.TEMPORARY, Tier.COLD, Tier.COLD),
        (Tier.COLD, Tier.HOT, Tier.HOT),
        (Tier.HOT, Tier.COLD, Tier.HOT),
        (Tier.COLD, Tier.TEMPORARY, Tier.COLD),
    ],
)
def test_a_shard_goes_where_its_strongest_promise_is(
    open_engine: Open, keep: Any, make_shard: Any, with_terms: Any, first: Tier, then: Tier, kept: Tier, is_small: bool
) -> None:
    engine, shard = open_engine(), make_shard(b"m" * 3_000, tier=first)
    if is_small:
        engine.keep_batch([shard.offer], [memoryview(shard.body)])
    else:
        keep(engine, shard)
    changed = with_terms(shard, tier=then, expiry=Height(2_000))
    assert engine.renew(changed.offer)
    blob = shard.offer.blob
    assert engine.get_record(blob, SEAT).tier is kept
    assert engine.disk.load_terms(blob, SEAT).tier is kept
    assert read(engine, blob) == shard.body
    has_file = engine.disk.get_body_path(blob, SEAT).exists()
    is_on_shelf = engine.disk.shelf.get_bytes(blob, SEAT) is not None
    assert (has_file, is_on_shelf) == (not is_small and kept is not Tier.COLD, not is_small and kept is Tier.COLD)
    engine = open_engine()
    assert reconcile(engine).get_findings() == {}
    assert read(engine, blob) == shard.body


class Died(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("point", ["after-sync", "after-rename", "after-index"])
def test_a_crash_at_any_point_of_a_cold_put(open_engine: Open, keep: Any, make_shard: Any, point: str) -> None:
    def fault(at: str) -> None:
        if at == point:
            raise Died

    engine, shard = open_engine(fault=fault), make_shard(b"c" * 9_000, tier=Tier.COLD)
    delete = engine.disk.delete
    engine.disk.delete = lambda blob, index: None  # type: ignore[method-assign]  # a dead process cleans nothing up
    with pytest.raises(Died):
        keep(engine, shard)
    engine.disk.delete = delete  # type: ignore[method-assign]
    engine = open_engine()
    found = reconcile(engine)
    is_kept = point != "after-sync"
    assert (engine.index.get(shard.offer.blob, SEAT) is not None) == is_kept
    assert found.reindexed == int(point == "after-rename")
    if is_kept:
        assert read(engine, shard.offer.blob) == shard.body


def test_a_bucket_that_is_away_costs_nothing_that_is_kept(
    open_engine: Open, keep: Any, make_shard: Any, chain: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore()
    engine, shard = open_engine(shelf=BucketShelf(store)), make_shard(b"c" * 9_000, tier=Tier.COLD)
    keep(engine, shard)
    blob = shard.offer.blob

    def fail(self: Any, *_: Any) -> Any:
        raise ShelfUnavailable(what="x", reason="the test has taken it away")

    for name in ("put", "get_bytes", "open", "delete"):
        monkeypatch.setattr(BucketShelf, name, fail)
    with pytest.raises(ShelfUnavailable):
        engine.get_record(blob, SEAT)
    with pytest.raises(ShelfUnavailable):
        keep(engine, make_shard(b"d" * 9_000, tier=Tier.COLD))
    assert engine.index.get_totals().num_shards == 1
    assert collect(engine, chain, Height(2_000)) == 0
    engine = open_engine(shelf=BucketShelf(store))
    assert reconcile(engine).unreachable >= 1
    assert engine.index.get(blob, SEAT) is not None
    monkeypatch.undo()
    engine = open_engine(shelf=BucketShelf(store))
    reconcile(engine)
    assert read(engine, blob) == shard.body
    assert collect(engine, chain, Height(3_000)) == 1
