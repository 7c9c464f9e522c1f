"""Puts, renewals, leases, moves, releases, losses, sweeps, crashes, restarts in any order (cases 60, 63, 66).

Nothing live is removed, nothing dead is kept, counters equal the disk, and what is read is right.
``python tests/storage/test_interleavings.py --minutes 30`` goes on for as long as asked and prints what it did.
"""

from __future__ import annotations

import argparse
import importlib.util
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from da.core.types import Height, ShardIndex, Tier
from storage.core.errors import ChainUnreachable, UnknownShard
from storage.core.expiry import GRACE_BLOCKS, PINNED
from storage.core.quota import compute_charge_bytes
from storage.node.collector import collect, collect_released
from storage.node.engine import StoreEngine
from storage.node.proofs import is_intact
from storage.node.reconcile import reconcile

SEAT = ShardIndex(0)
NUM_SHARDS = 5
POINTS = ("during-body", "after-sync", "after-rename", "after-index")
numbers = st.integers(0, NUM_SHARDS - 1)
operations = st.one_of(
    st.tuples(st.just("put"), numbers, st.tuples(st.integers(1, 60), st.sampled_from(Tier))),
    st.tuples(st.just("crash"), numbers, st.tuples(st.sampled_from(POINTS), st.sampled_from(Tier))),
    st.tuples(st.just("lease"), numbers, st.one_of(st.integers(1, 120), st.just(PINNED))),
    st.tuples(st.just("release"), numbers, st.none()),
    st.tuples(st.just("lose"), numbers, st.booleans()),
    st.tuples(st.just("wait"), st.integers(1, 60), st.none()),
    st.tuples(st.just("sweep"), st.booleans(), st.none()),
    st.tuples(st.just("restart"), st.booleans(), st.none()),
)


class Died(BaseException):
    """The process ends here."""


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(operations, min_size=5, max_size=30))
def test_any_history_keeps_every_promise(
    make_shard: Any, keep: Any, with_terms: Any, make_chain: Any, history: list[tuple[str, Any, Any]]
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        world = World(Path(directory) / "home", make_chain(), make_shard, keep, with_terms)
        try:
            for operation, first, second in history:
                getattr(world, operation)(first, second)
                world.check()
        finally:
            world.engine.close()


class World:
    """One store, its chain, and what has been promised."""

    def __init__(self, home: Path, chain: Any, make_shard: Any, keep: Any, with_terms: Any) -> None:
        self.home = home
        self.chain = chain
        self.shards = [
            make_shard(bytes([number]) * (number * 3_000), tier=Tier.TEMPORARY) for number in range(NUM_SHARDS)
        ]
        self._keep = keep
        self._with_terms = with_terms
        self._die_at = ""
        self.engine = self._open()
        self.height = 100
        self.promised: dict[int, int] = {}
        self.lost: set[int] = set()
        self.given_back: set[int] = set()

    def put(self, number: int, wanted: tuple[int, Tier]) -> None:
        blocks, tier = wanted
        shard = self._with_terms(self.shards[number], expiry=Height(self.height + blocks), tier=tier)
        if not self.engine.renew(shard.offer):
            self._keep(self.engine, shard)
        self.promised[number] = max(self.promised.get(number, 0), self.height + blocks)
        self.lost.discard(number)
        if self.height + blocks > self.chain.signed.get(shard.offer.blob, 0):
            self.given_back.discard(number)

    def crash(self, number: int, how: tuple[str, Tier]) -> None:
        self._die_at = how[0]
        try:
            self.put(number, (30, how[1]))
        except Died:
            if how[0] in ("after-index",):  # a receipt may have been signed
                self.promised[number] = max(self.promised.get(number, 0), self.height + 30)
                self.lost.discard(number)
                self.given_back.discard(number)
        self._die_at = ""
        self.restart(False, None)

    def lease(self, number: int, blocks: int) -> None:
        blob = self.shards[number].offer.blob
        if self.promised.get(number, 0) <= self.height and self.chain.releases.get(blob, 0) <= self.height:
            return  # The chain takes a certificate only while it is alive.
        self.chain.signed[blob] = max(self.chain.signed.get(blob, 0), self.promised.get(number, 0))
        # A lease is as long as what was signed for it, or was renewed: only a release makes it shorter.
        ends = max(self.height + blocks, self.chain.signed[blob])
        self.chain.releases[blob] = PINNED if blocks == PINNED else ends
        self.given_back.discard(number)

    def release(self, number: int, _: None) -> None:
        """Its owner gives the lease back; the node has signed for nothing that the chain has not seen."""
        blob = self.shards[number].offer.blob
        if self.chain.releases.get(blob, 0) > self.height and self.chain.releases[blob] != PINNED:
            self.chain.releases[blob] = self.height
            if self.promised.get(number, 0) <= self.chain.signed[blob]:
                self.given_back.add(number)

    def lose(self, number: int, is_damaged: bool) -> None:
        """The medium fails."""
        blob = self.shards[number].offer.blob
        path = self.engine.disk.get_body_path(blob, SEAT)
        if not path.exists() or not path.stat().st_size:
            return
        self.lost.add(number)
        if is_damaged:
            path.write_bytes(bytes(255 - byte for byte in path.read_bytes()))
            assert not is_intact(self.engine, blob, SEAT)
            self.engine.quarantine(blob, SEAT)
        else:
            path.unlink()

    def wait(self, blocks: int, _: None) -> None:
        self.height += blocks

    def sweep(self, is_down: bool, _: None) -> None:
        self.chain.is_down = is_down
        before = self.engine.index.get_totals()
        try:
            collect(self.engine, self.chain, Height(self.height))
            collect_released(self.engine, self.chain, Height(self.height))
        except ChainUnreachable:
            assert self.engine.index.get_totals() == before
        else:
            for number, shard in enumerate(self.shards):
                ends = (self.promised.get(number, 0), self.chain.releases.get(shard.offer.blob, 0))
                end = ends[1] if number in self.given_back else max(ends)
                if end + GRACE_BLOCKS <= self.height and number in self.given_back:
                    assert self.engine.index.get(shard.offer.blob, SEAT) is None, "what was given back is gone"

    def restart(self, is_index_lost: bool, _: None) -> None:
        self.engine.close()
        if is_index_lost:
            shutil.rmtree(self.home / "index")
        self.engine = self._open()
        reconcile(self.engine)

    def check(self) -> None:
        kept, tiers = 0, Counter[Tier]()
        for number, shard in enumerate(self.shards):
            blob = shard.offer.blob
            end = max(self.promised.get(number, 0), self.chain.releases.get(blob, 0))
            record = self.engine.index.get(blob, SEAT)
            is_promised = self.promised.get(number) and end + GRACE_BLOCKS > self.height
            if is_promised and number not in self.lost and number not in self.given_back:
                assert record is not None, f"shard {number}, kept until {end}, is gone at {self.height}"
            if record is not None:
                kept += compute_charge_bytes(len(shard.body))
                tiers[record.tier] += compute_charge_bytes(len(shard.body))
                if number not in self.lost:
                    assert is_intact(self.engine, blob, SEAT)
            elif number not in self.lost:
                assert self.engine.disk.get_body_bytes(blob, SEAT) is None
                assert not _is_readable(self.engine, shard)
        totals = self.engine.index.get_totals()
        assert self.engine.get_quota().used_bytes == totals.used_bytes == kept
        assert totals.tier_bytes == tuple(tiers[tier] for tier in Tier)
        assert not list((self.home / "staging").iterdir())

    def _open(self) -> StoreEngine:
        return StoreEngine(self.home, capacity_bytes=1 << 30, floor_bytes=0, map_bytes=1 << 22, fault=self._pass)

    def _pass(self, point: str) -> None:
        if point == self._die_at:
            raise Died


def _is_readable(engine: StoreEngine, shard: Any) -> bool:
    try:
        engine.get_record(shard.offer.blob, SEAT)
    except UnknownShard:
        return False
    return True


def main() -> None:
    """Play random histories for as long as asked."""
    parser = argparse.ArgumentParser(description="Soak the store engine.")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=None)
    arguments = parser.parse_args()
    spec = importlib.util.spec_from_file_location("store_doubles", Path(__file__).with_name("conftest.py"))
    assert spec is not None
    assert spec.loader is not None
    doubles = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = doubles
    spec.loader.exec_module(doubles)
    seed = random.randrange(2**32) if arguments.seed is None else arguments.seed
    chance, counts, end = random.Random(seed), Counter[str](), time.monotonic() + 60 * arguments.minutes
    while time.monotonic() < end:
        with tempfile.TemporaryDirectory() as directory:
            world = World(
                Path(directory) / "home",
                doubles.FakeChain(),
                doubles.make_one_shard,
                doubles.put_shard,
                doubles.change_terms,
            )
            for _ in range(200):
                name, first, second = draw(chance)
                getattr(world, name)(first, second)
                world.check()
                counts[name] += 1
            world.engine.close()
            counts["histories"] += 1
    print(f"seed {seed}: nothing lost, nothing left; {dict(counts)}")


def draw(chance: random.Random) -> tuple[str, Any, Any]:
    """Return one operation."""
    number, tier = chance.randrange(NUM_SHARDS), chance.choice(list(Tier))
    return chance.choice(
        [
            ("put", number, (chance.randrange(1, 61), tier)),
            ("put", number, (chance.randrange(1, 61), tier)),
            ("crash", number, (chance.choice(POINTS), tier)),
            ("lease", number, chance.choice([chance.randrange(1, 121), PINNED])),
            ("release", number, None),
            ("lose", number, chance.random() < 0.5),
            ("wait", chance.randrange(1, 61), None),
            ("sweep", chance.random() < 0.2, None),
            ("restart", chance.random() < 0.2, None),
        ]
    )


if __name__ == "__main__":
    main()
