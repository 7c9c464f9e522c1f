"""ENOSPC at every write of every operation: one clear error, nothing promised is lost, nothing dead is left.

Once by an injected errno at each call in turn, once on a real file system of a few MB that others fill.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from da.core.types import Height, ShardIndex, Tier
from storage.core.errors import DiskFull, StoreBusy
from storage.core.expiry import GRACE_BLOCKS
from storage.core.quota import compute_charge_bytes
from storage.node.collector import collect
from storage.node.engine import StoreEngine
from storage.node.proofs import is_intact
from storage.node.reconcile import reconcile

SEAT = ShardIndex(0)
CALLS = ("open", "posix_fallocate", "write", "pwrite", "fdatasync", "fsync", "rename", "mkdir")
BODY = random.Random(8).randbytes(200_000)


class FullAt:
    """Fails the n-th call that would need room; counts them all."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left: int | None = None
        self.num_calls = 0
        for name in CALLS:
            monkeypatch.setattr(os, name, self._wrap(name, getattr(os, name)))

    def _wrap(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if name == "open" and not args[1] & os.O_CREAT:
                return real(*args, **kwargs)
            if self.left is not None:
                self.num_calls += 1
                self.left -= 1
                if self.left == 0:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(*args, **kwargs)

        return call


def put(engine: StoreEngine, shard: Any, keep: Any) -> None:
    if not engine.renew(shard.offer):
        keep(engine, shard)


OPERATIONS: dict[str, tuple[Tier | None, Tier]] = {
    "put temporary": (None, Tier.TEMPORARY),
    "put hot": (None, Tier.HOT),
    "put cold": (None, Tier.COLD),
    "temporary to hot": (Tier.TEMPORARY, Tier.HOT),
    "temporary to cold": (Tier.TEMPORARY, Tier.COLD),
    "cold to hot": (Tier.COLD, Tier.HOT),
    "hot for longer": (Tier.HOT, Tier.HOT),
    "hot again after its loss": (Tier.HOT, Tier.HOT),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_no_room_at_any_call_keeps_the_old_promise_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_shard: Any, with_terms: Any, keep: Any, name: str
) -> None:
    before, after = OPERATIONS[name]
    disk = FullAt(monkeypatch)
    number = 0
    while True:
        number += 1
        home = tmp_path / str(number)
        engine = StoreEngine(home, capacity_bytes=1 << 30, floor_bytes=0, map_bytes=1 << 22)
        first = make_shard(BODY, tier=after if before is None else before, expiry=500)
        if before is not None:
            put(engine, first, keep)
        if "loss" in name:
            engine.disk.get_body_path(first.offer.blob, SEAT).unlink()
        wanted = with_terms(first, tier=after, expiry=Height(900))
        disk.left, disk.num_calls = number, 0
        is_done = False
        with contextlib.suppress(DiskFull):
            put(engine, wanted, keep)
            is_done = True
        is_last, disk.left = disk.num_calls < number, None
        record = engine.index.get(first.offer.blob, SEAT)
        if not is_done:
            if before is None:
                assert record is None
                assert engine.get_quota().used_bytes == 0
            else:
                assert record is not None
                assert (record.tier, record.expiry) == (before, 500)
                if "loss" not in name:
                    assert is_intact(engine, first.offer.blob, SEAT)
            assert engine.get_quota().reserved_bytes == 0
            put(engine, wanted, keep)
            record = engine.index.get(first.offer.blob, SEAT)
        assert record is not None
        assert (record.tier, record.expiry) == (after, 900)
        assert is_intact(engine, first.offer.blob, SEAT)
        engine.close()
        engine = StoreEngine(home, capacity_bytes=1 << 30, floor_bytes=0, map_bytes=1 << 22)
        found = reconcile(engine).get_findings()
        assert found in ({}, {"surplus_removed": 1}), found
        assert not found or (is_done and not is_last), "only a copy that could not be removed is left"
        assert len(list(engine.disk.shelf.iterate_keys())) == (after is Tier.COLD)
        assert engine.get_quota().used_bytes == compute_charge_bytes(len(BODY))
        engine.close()
        if is_last:
            break
    assert number > 2, "there are calls that can fail"


@pytest.mark.parametrize("tier", list(Tier))
def test_no_room_while_the_collector_deletes_only_delays_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_shard: Any, keep: Any, chain: Any, tier: Tier
) -> None:
    """A cold shard needs room for its tombstone; a disk without any must not stop the collector."""
    disk = FullAt(monkeypatch)
    engine = StoreEngine(tmp_path, capacity_bytes=1 << 30, floor_bytes=0, map_bytes=1 << 22)
    for seed in range(3):
        keep(engine, make_shard(random.Random(seed).randbytes(9_000), tier=tier, expiry=500))
    for number in range(1, 4):
        disk.left = number
        collect(engine, chain, Height(500 + GRACE_BLOCKS + 200 * number))
        disk.left = None
    collect(engine, chain, Height(500 + GRACE_BLOCKS + 2_000))
    assert engine.index.get_totals().num_shards == 0
    assert list(engine.disk.shelf.iterate_keys()) == []
    engine.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 12 MB; skipped where this process may not mount one (the injected errors run everywhere)."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", str(place)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"can't mount a file system here: {mounted.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True, timeout=10)


def test_a_real_disk_that_others_fill(small_disk: Path, make_shard: Any, keep: Any, chain: Any) -> None:
    """Bodies, terms, both LMDB files and segments meet ENOSPC; what is kept stays readable, and all of it can end."""
    engine = StoreEngine(small_disk / "home", capacity_bytes=1 << 30, floor_bytes=0, map_bytes=1 << 24)
    chance = random.Random(4)
    kept: list[Any] = []
    refused = 0
    ballast = small_disk / "ballast"
    for number in range(400):
        tier = chance.choice(list(Tier))
        shard = make_shard(chance.randbytes(chance.choice([10, 3_000, 60_000])), tier=tier, expiry=500)
        if number % 40 == 20:
            fill(ballast)
        if number % 40 == 39:
            ballast.unlink()
        try:
            if number % 3:
                keep(engine, shard)
            else:
                engine.keep_batch([shard.offer], [memoryview(shard.body)])
        except (DiskFull, StoreBusy):
            refused += 1
        else:
            kept.append(shard)
    fill(ballast)
    assert refused > 20
    assert len(kept) > 100
    assert all(is_intact(engine, shard.offer.blob, SEAT) for shard in kept)
    assert engine.get_quota().used_bytes == sum(compute_charge_bytes(len(shard.body)) for shard in kept)
    collect(engine, chain, Height(500 + GRACE_BLOCKS))
    ballast.unlink()
    for sweep in range(1, 4):
        collect(engine, chain, Height(500 + GRACE_BLOCKS + 200 * sweep))
    assert engine.get_quota().used_bytes == 0
    engine.close()
    engine = StoreEngine(small_disk / "home", capacity_bytes=1 << 30, floor_bytes=0, map_bytes=1 << 24)
    assert reconcile(engine).get_findings() == {}
    assert list((small_disk / "home" / "shards").rglob("*.shard")) == []
    engine.close()


def fill(path: Path) -> None:
    """Take all room that is left."""
    with path.open("ab", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            with pytest.raises(OSError, match="No space left"):
                write_for_ever(file, bytes(size))


def write_for_ever(file: Any, data: bytes) -> None:
    while True:
        file.write(data)
