"""Case 60 to the last call: SIGKILL before each call that changes the disk, in every operation of the store.

The operation runs in a forked process that ends itself there; then the home is opened again, as a restarted node does.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from da.core.types import Height, ShardIndex, Tier
from storage.core.expiry import GRACE_BLOCKS
from storage.core.quota import compute_charge_bytes
from storage.node.collector import collect
from storage.node.doctor import diagnose
from storage.node.engine import StoreEngine
from storage.node.proofs import is_intact
from storage.node.ram import RamFolder
from storage.node.reconcile import reconcile

SEAT = ShardIndex(0)
CALLS = ("open", "write", "pwrite", "fdatasync", "fsync", "rename", "mkdir", "unlink", "ftruncate", "symlink")
BODY = random.Random(8).randbytes(60_000)


IN_MEMORY = "-ram"
"""Ends the names of homes whose temporary shards lie in memory."""


def open_engine(home: Path) -> StoreEngine:
    ram = RamFolder(home.parent, home, max_bytes=1 << 20) if home.name.endswith(IN_MEMORY) else None
    return StoreEngine(home, capacity_bytes=1 << 30, floor_bytes=0, map_bytes=1 << 20, ram=ram)


def put(engine: StoreEngine, shard: Any, keep: Any) -> None:
    if not engine.renew(shard.offer):
        keep(engine, shard)


def put_batch(engine: StoreEngine, shard: Any, _: Any) -> None:
    engine.keep_batch([shard.offer], [memoryview(shard.body)])


Operation = tuple[Tier | None, Tier, Callable[[StoreEngine, Any, Any], None]]

OPERATIONS: dict[str, Operation] = {
    "put temporary": (None, Tier.TEMPORARY, put),
    "put hot": (None, Tier.HOT, put),
    "put cold": (None, Tier.COLD, put),
    "batch hot": (None, Tier.HOT, put_batch),
    "batch temporary": (None, Tier.TEMPORARY, put_batch),
    "temporary to hot": (Tier.TEMPORARY, Tier.HOT, put),
    "temporary to cold": (Tier.TEMPORARY, Tier.COLD, put),
    "cold to hot": (Tier.COLD, Tier.HOT, put),
    "hot for longer": (Tier.HOT, Tier.HOT, put),
    "small temporary to hot": (Tier.TEMPORARY, Tier.HOT, put_batch),
    "put temporary in memory": (None, Tier.TEMPORARY, put),
    "temporary to hot in memory": (Tier.TEMPORARY, Tier.HOT, put),
    "temporary to cold in memory": (Tier.TEMPORARY, Tier.COLD, put),
}


def run_and_die(work: Callable[[], None], number: int) -> bool:
    """Run ``work`` in a forked process that kills itself before its ``number``-th call; tell whether it died there."""
    child = os.fork()
    if child == 0:
        _arm(number)
        try:
            work()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


def _arm(number: int) -> None:
    left = number

    def wrap(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal left
            if name != "open" or args[1] & os.O_CREAT:
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **kwargs)

        return call

    for name in CALLS:
        setattr(os, name, wrap(name, getattr(os, name)))


def check_home(home: Path, *, num_lost: int = 0) -> StoreEngine:
    """Open a home as a restarted node does; nothing may be wrong then, and nothing left to find once more."""
    engine = open_engine(home)
    found = reconcile(engine)
    assert found.quarantined == 0, found
    assert found.lost <= num_lost, found
    assert reconcile(engine).get_findings() == {}
    assert diagnose(engine).get_advice() == []
    if home.name.endswith(IN_MEMORY):
        ram = RamFolder(home.parent, home, max_bytes=0).path
        assert set(ram.iterdir()) == {path.resolve() for path in home.rglob("*.shard") if path.is_symlink()}
    return engine


@pytest.mark.parametrize("name", OPERATIONS)
def test_killed_before_any_call_of_an_operation(
    tmp_path: Path, make_shard: Any, with_terms: Any, keep: Any, name: str
) -> None:
    before, after, work = OPERATIONS[name]
    number, has_died = 0, True
    while has_died:
        number += 1
        home = tmp_path / f"{number}{IN_MEMORY if 'in memory' in name else ''}"
        first = make_shard(BODY, tier=after if before is None else before, expiry=500)
        if before is not None:
            engine = open_engine(home)
            work(engine, first, keep)
            engine.close()
        wanted = with_terms(first, tier=after, expiry=Height(900))
        has_died = run_and_die(lambda home=home, wanted=wanted: work(open_engine(home), wanted, keep), number)
        engine = check_home(home)
        record = engine.index.get(first.offer.blob, SEAT)
        if before is None and record is None:
            assert has_died
            assert engine.get_quota().used_bytes == 0
            assert list((home / "shards").rglob("*.*")) == []
        else:
            assert record is not None, f"{name} killed before call {number} lost what was promised"
            assert (record.tier, record.expiry) in ((before, 500), (after, 900))
            assert has_died or (record.tier, record.expiry) == (after, 900)
            assert is_intact(engine, first.offer.blob, SEAT)
            assert engine.get_quota().used_bytes == compute_charge_bytes(len(BODY))
        work(engine, wanted, keep)
        record = engine.index.get(first.offer.blob, SEAT)
        assert record is not None
        assert (record.tier, record.expiry) == (after, 900)
        assert is_intact(engine, first.offer.blob, SEAT)
        engine.close()
    assert number > 1, "it changes the disk somewhere"


@pytest.mark.parametrize(("tier", "ending"), [*((tier, "") for tier in Tier), (Tier.TEMPORARY, IN_MEMORY)])
def test_killed_before_any_call_of_the_collector(
    tmp_path: Path, make_shard: Any, keep: Any, chain: Any, tier: Tier, ending: str
) -> None:
    """Whatever was not deleted is deleted after the restart, and nothing that lives goes with it."""
    number, has_died = 0, True
    while has_died:
        number += 1
        home = tmp_path / f"{number}{ending}"
        engine = open_engine(home)
        dead = make_shard(BODY, tier=tier, expiry=500)
        live = make_shard(BODY[1:], tier=tier, expiry=9_000)
        for shard in (dead, live):
            keep(engine, shard)
        engine.close()
        height = Height(500 + GRACE_BLOCKS)
        has_died = run_and_die(lambda home=home, height=height: void(collect(open_engine(home), chain, height)), number)
        engine = check_home(home, num_lost=1)  # bytes go first: what was being deleted is found half gone
        collect(engine, chain, height)
        assert engine.index.get(dead.offer.blob, SEAT) is None
        assert is_intact(engine, live.offer.blob, SEAT)
        assert engine.get_quota().used_bytes == compute_charge_bytes(len(live.body))
        assert len(list((home / "shards").rglob("*.terms"))) == 1
        assert len(list(engine.disk.shelf.iterate_keys())) == (tier is Tier.COLD)
        engine.close()


def void(_: object) -> None:
    """Take a result that nobody wants."""
