"""The collector: by height and by the chain's word only; an error deletes nothing."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from da.core.types import BlobId, Height, ShardIndex, Tier
from storage.core.errors import ChainUnreachable, UnknownShard
from storage.core.expiry import GRACE_BLOCKS, PINNED, RECHECK_BLOCKS
from storage.node import collector as collector_module
from storage.node.collector import ask_releases, ask_signed, collect, collect_released, finish_early
from storage.node.engine import StoreEngine
from storage.node.promises import Promises
from storage.node.proofs import is_intact
from storage.node.reconcile import reconcile

Open = Callable[..., StoreEngine]
SEAT = ShardIndex(0)
LATE = 1_000 + GRACE_BLOCKS


@pytest.fixture
def engine(open_engine: Open) -> StoreEngine:
    return open_engine()


def test_nothing_is_asked_before_its_time(engine: StoreEngine, keep: Any, make_shard: Any, chain: Any) -> None:
    keep(engine, make_shard(b"x", expiry=1_000))
    assert collect(engine, chain, Height(LATE - 1)) == 0
    assert chain.asked == []


def test_expired_shards_leave_no_file_behind(
    engine: StoreEngine, keep: Any, make_shard: Any, chain: Any, get_files: Any, tmp_path: Path
) -> None:
    """Case 74: files, records, counters and due entries all go."""
    for number in range(20):
        keep(engine, make_shard(os.urandom(500), expiry=1_000 + number, tier=Tier.TEMPORARY))
    assert collect(engine, chain, Height(LATE + 9)) == 10
    assert len(get_files(tmp_path / "home")) == 20
    assert collect(engine, chain, Height(LATE + 19)) == 10
    assert get_files(tmp_path / "home") == {}
    assert engine.get_quota().used_bytes == 0
    assert engine.index.get_due(Height(2**63), limit=10) == []


def test_a_chain_that_does_not_answer_deletes_nothing(
    engine: StoreEngine, keep: Any, make_shard: Any, chain: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 67, also when the error comes in the middle of the batches."""
    for _ in range(5):
        keep(engine, make_shard(os.urandom(100), expiry=1_000))
    chain.is_down = True
    with pytest.raises(ChainUnreachable):
        collect(engine, chain, Height(LATE))
    chain.is_down = False
    monkeypatch.setattr("storage.core.expiry.MAX_ASKED", 2)
    answer = chain.get_release_heights

    def fail_later(blobs: Any) -> Any:
        if len(chain.asked) == 1:
            raise ChainUnreachable("cut")
        return answer(blobs)

    monkeypatch.setattr(chain, "get_release_heights", fail_later)
    with pytest.raises(ChainUnreachable):
        collect(engine, chain, Height(LATE))
    assert engine.index.get_totals().num_shards == 5


def test_an_answer_of_the_wrong_length_deletes_nothing(
    engine: StoreEngine, keep: Any, make_shard: Any, chain: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        keep(engine, make_shard(os.urandom(100), expiry=1_000))
    monkeypatch.setattr(chain, "get_release_heights", lambda blobs: (0,))
    with pytest.raises(ValueError, match="zip"):
        collect(engine, chain, Height(LATE))
    assert engine.index.get_totals().num_shards == 3


def test_pinned_shards_stay_until_the_chain_lets_go(
    engine: StoreEngine, keep: Any, make_shard: Any, chain: Any
) -> None:
    shard = make_shard(b"newest checkpoint", expiry=1_000)
    keep(engine, shard)
    chain.releases[shard.offer.blob] = PINNED
    assert collect(engine, chain, Height(50_000)) == 0
    assert collect(engine, chain, Height(50_001)) == 0
    assert len(chain.asked) == 1, "a pinned shard is not asked about at every sweep"
    chain.releases[shard.offer.blob] = 50_050
    assert collect(engine, chain, Height(50_000 + RECHECK_BLOCKS)) == 1
    with pytest.raises(UnknownShard):
        engine.get_record(shard.offer.blob, SEAT)


def test_a_shard_promised_anew_in_the_meantime_stays(
    engine: StoreEngine, keep: Any, make_shard: Any, chain: Any, with_terms: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = make_shard(b"x", expiry=1_000)
    keep(engine, shard)
    answer = chain.get_release_heights

    def renew_meanwhile(blobs: Any) -> Any:
        assert engine.renew(with_terms(shard, expiry=Height(9_000)).offer)
        return answer(blobs)

    monkeypatch.setattr(chain, "get_release_heights", renew_meanwhile)
    assert collect(engine, chain, Height(LATE)) == 0
    assert engine.get_record(shard.offer.blob, SEAT).expiry == 9_000


def test_one_bad_record_does_not_stop_the_others(
    engine: StoreEngine, keep: Any, make_shard: Any, chain: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 61: a truncated record, and a file that can't be deleted."""
    shards = [make_shard(os.urandom(100), expiry=1_000) for _ in range(5)]
    for shard in shards:
        keep(engine, shard)
    index = engine.index
    with index._env.write() as txn:
        txn.put(shards[0].offer.blob + b"\0\0", b"cut", db=index._shards)
    stuck = shards[1].offer.blob
    delete = engine.disk.delete

    def fail_for_one(blob: Any, seat: Any) -> None:
        if blob == stuck:
            raise PermissionError("read-only")
        delete(blob, seat)

    monkeypatch.setattr(engine.disk, "delete", fail_for_one)
    assert collect(engine, chain, Height(LATE)) == 3
    monkeypatch.undo()
    assert collect(engine, chain, Height(LATE + RECHECK_BLOCKS)) == 1
    reconcile(engine)
    assert engine.index.get(shards[0].offer.blob, SEAT) is not None, "its file proved itself again"
    assert collect(engine, chain, Height(LATE + RECHECK_BLOCKS)) == 1
    assert engine.get_quota().used_bytes == 0


def test_more_than_one_sweep_can_hold(
    engine: StoreEngine, keep: Any, make_shard: Any, chain: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collector_module, "SWEEP_SHARDS", 4)
    for number in range(10):
        shard = make_shard(os.urandom(100), expiry=1_000 + number)
        keep(engine, shard)
        chain.releases[shard.offer.blob] = PINNED if number < 6 else 0
    counts = [collect(engine, chain, Height(LATE + 20)) for _ in range(3)]
    assert sum(counts) == 4, "pinned ones do not stand in the way of those behind them"


def test_expired_shards_do_not_come_back_after_downtime(
    open_engine: Open, keep: Any, make_shard: Any, chain: Any, tmp_path: Path
) -> None:
    """Case 53: after a long stop, even with the index lost, the first sweep deletes them."""
    engine, shard = open_engine(), make_shard(b"x", expiry=1_000)
    keep(engine, shard)
    engine.index.delete(shard.offer.blob, SEAT)
    engine = open_engine()
    assert reconcile(engine).reindexed == 1
    assert collect(engine, chain, Height(1_000_000)) == 1
    assert count_shards(open_engine()) == 0


def count_shards(engine: StoreEngine) -> int:
    reconcile(engine)
    return engine.index.get_totals().num_shards


def test_space_is_freed_over_ten_times_the_budget(
    open_engine: Open, keep: Any, make_shard: Any, chain: Any, tmp_path: Path
) -> None:
    """Case 71: write and expire ten times what fits; disk and index stay within 1.2 times the budget."""
    budget = 2 << 20
    engine = open_engine(capacity_bytes=budget)
    height, index_bytes = 100, []
    for _ in range(12):
        for _ in range(18):
            keep(engine, make_shard(os.urandom(100_000), expiry=height + 1, tier=Tier.TEMPORARY))
        height += 1 + GRACE_BLOCKS
        assert sum(path.stat().st_size for path in (tmp_path / "home").rglob("*") if path.is_file()) < budget * 1.2
        assert collect(engine, chain, Height(height)) == 18
        index_bytes.append((tmp_path / "home" / "index" / "data.mdb").stat().st_size)
    assert engine.get_quota().used_bytes == 0
    assert index_bytes[-1] <= index_bytes[3] * 1.2


def test_what_is_put_again_after_its_lease_was_given_back_waits_for_its_certificate(
    open_engine: Any, make_shard: Any, keep: Any, chain: Any
) -> None:
    """The same blob for no longer than before: nothing on the chain says yet that it was signed for again."""
    engine = open_engine()
    now = [10_000.0]
    engine.promises = Promises(60.0, clock=lambda: now[0])
    now[0] += 100  # what a former process may have signed is long ago
    shard = make_shard(b"x" * 5_000, expiry=1_000)
    keep(engine, shard)
    now[0] += 200
    chain.releases[shard.offer.blob], chain.signed[shard.offer.blob] = 110, 1_000
    due = engine.index.get_page(b"", limit=10)
    releases = ask_releases(chain, due)
    signed = ask_signed(chain, due, releases, Height(200))
    assert engine.renew(shard.offer)  # between the question and the deletion
    assert finish_early(engine, due, releases, Height(200), signed) == 0
    assert collect_released(engine, chain, Height(210)) == 0
    assert is_intact(engine, shard.offer.blob, ShardIndex(0))
    now[0] += 130  # no certificate came
    assert collect_released(engine, chain, Height(400)) == 1


def test_promises_are_forgotten_in_time_and_all_are_recent_after_a_start() -> None:
    now = [0.0]
    promises = Promises(60.0, clock=lambda: now[0])
    one, two = ((BlobId(bytes([number]) * 32), ShardIndex(0)) for number in (1, 2))
    assert promises.is_recent(two), "a former process may have signed"
    now[0] = 61
    assert not promises.is_recent(two)
    promises.note([one])
    for second in range(61, 121):
        now[0] = second
        assert promises.is_recent(one)
        assert not promises.is_recent(two)
    now[0] = 182
    assert not promises.is_recent(one)


def test_renewals_race_with_the_collector(
    open_engine: Any, make_shard: Any, with_terms: Any, keep: Any, chain: Any
) -> None:
    """Whatever a renewal said is true afterwards: the shard is there until the new expiry, or it said that it isn't."""
    engine = open_engine()
    shards = [make_shard(bytes([number]) * 3_000, expiry=100) for number in range(24)]
    for shard in shards:
        keep(engine, shard)
    height, kept, gone = Height(100 + GRACE_BLOCKS), [], []
    start = threading.Barrier(3)

    def renew(mine: list[Any]) -> None:
        start.wait()
        for shard in mine:
            said = engine.renew(with_terms(shard, expiry=Height(5_000)).offer)
            (kept if said else gone).append(shard)

    threads = [threading.Thread(target=renew, args=(mine,)) for mine in (shards[::2], shards[1::2])]
    for thread in threads:
        thread.start()
    start.wait()
    while any(thread.is_alive() for thread in threads):
        collect(engine, chain, height)
        collect_released(engine, chain, height)
    for thread in threads:
        thread.join()
    collect(engine, chain, height)
    assert len(kept) + len(gone) == len(shards)
    assert all(is_intact(engine, shard.offer.blob, ShardIndex(0)) for shard in kept)
    assert engine.index.get_totals().num_shards == len(kept)
    assert all(engine.index.get(shard.offer.blob, ShardIndex(0)) is None for shard in gone)
