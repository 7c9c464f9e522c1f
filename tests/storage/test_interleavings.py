"""Puts, renewals, leases, sweeps and restarts in any order: nothing live is removed, nothing dead is counted."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from da.core.types import Height, ShardIndex, Tier
from storage.core.errors import ChainUnreachable
from storage.core.expiry import GRACE_BLOCKS, PINNED
from storage.core.quota import compute_charge_bytes
from storage.node.collector import collect
from storage.node.engine import StoreEngine
from storage.node.reconcile import reconcile

SEAT = ShardIndex(0)
operations = st.one_of(
    st.tuples(st.just("put"), st.integers(0, 4), st.integers(1, 60)),
    st.tuples(st.just("lease"), st.integers(0, 4), st.one_of(st.integers(1, 120), st.just(PINNED))),
    st.tuples(st.just("wait"), st.integers(1, 60), st.just(0)),
    st.tuples(st.just("sweep"), st.booleans(), st.just(0)),
    st.tuples(st.just("restart"), st.booleans(), st.just(0)),
)


def open_engine(home: Path) -> StoreEngine:
    return StoreEngine(home, capacity_bytes=1 << 30, floor_bytes=0, map_bytes=1 << 22)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(operations, min_size=5, max_size=30))
def test_any_history_keeps_every_promise(
    make_shard: Any, keep: Any, with_terms: Any, make_chain: Any, history: list[tuple[str, Any, int]]
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        shards = [make_shard(bytes([number]) * (number * 3_000), tier=Tier.TEMPORARY) for number in range(5)]
        world = World(Path(directory) / "home", make_chain(), shards, keep, with_terms)
        try:
            for operation, value, blocks in history:
                getattr(world, operation)(value, blocks)
                world.check()
        finally:
            world.engine.close()


class World:
    """One store, its chain, and what has been promised."""

    def __init__(self, home: Path, chain: Any, shards: list[Any], keep: Any, with_terms: Any) -> None:
        self.home = home
        self.chain = chain
        self.shards = shards
        self._keep = keep
        self._with_terms = with_terms
        self.engine = open_engine(home)
        self.height = 100
        self.promised: dict[int, int] = {}

    def put(self, number: int, blocks: int) -> None:
        shard = self._with_terms(self.shards[number], expiry=Height(self.height + blocks))
        if not self.engine.renew(shard.offer):
            self._keep(self.engine, shard)
        self.promised[number] = max(self.promised.get(number, 0), self.height + blocks)

    def lease(self, number: int, blocks: int) -> None:
        blob = self.shards[number].offer.blob
        if self.promised.get(number, 0) <= self.height and self.chain.releases.get(blob, 0) <= self.height:
            return  # The chain takes a certificate only while it is alive.
        self.chain.releases[blob] = PINNED if blocks == PINNED else self.height + blocks

    def wait(self, blocks: int, _: int) -> None:
        self.height += blocks

    def sweep(self, is_down: bool, _: int) -> None:
        self.chain.is_down = is_down
        before = self.engine.index.get_totals()
        try:
            collect(self.engine, self.chain, Height(self.height))
        except ChainUnreachable:
            assert self.engine.index.get_totals() == before

    def restart(self, is_index_lost: bool, _: int) -> None:
        self.engine.close()
        if is_index_lost:
            shutil.rmtree(self.home / "index")
        self.engine = open_engine(self.home)
        reconcile(self.engine)

    def check(self) -> None:
        kept = 0
        for number, shard in enumerate(self.shards):
            end = max(self.promised.get(number, 0), self.chain.releases.get(shard.offer.blob, 0))
            is_kept = self.engine.index.get(shard.offer.blob, SEAT) is not None
            path = self.engine.disk.get_body_path(shard.offer.blob, SEAT)
            assert path.exists() == is_kept
            if self.promised.get(number) and end + GRACE_BLOCKS > self.height:
                assert is_kept, f"shard {number}, kept until {end}, is gone at {self.height}"
            kept += compute_charge_bytes(len(shard.body)) if is_kept else 0
        assert self.engine.get_quota().used_bytes == kept
