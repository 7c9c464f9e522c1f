"""Asks other seats to prove what this node knows they signed for, and counts who can't (SPEC.md 11).

Every few blocks one blob of the own index, drawn at random: a random leaf of each seat, and the folds of all shards
under fresh coefficients, which name the liars among them. What follows is for people: a bonded challenge on the chain.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from concurrent.futures import Executor
from dataclasses import dataclass, field

from da.auditing import fetch_fold, fetch_leaf, judge_folds
from da.core.audits import NONCE_BYTES
from da.core.blob import BlobHeader, compute_shard_bytes, decode_header
from da.core.errors import MalformedHeader, SeatFailed
from da.core.merkle import compute_num_leaves
from da.core.types import BlobId, Committee, Seat
from da.counting import Traffic
from da.links import SeatLinks
from da.memory import BufferPool
from storage.core.errors import ChainUnreachable, UnknownShard
from storage.node.chain_port import KeepingPort
from storage.node.engine import StoreEngine
from storage.node.proofs import fold_shard
from storage.node.threads import run_in
from storage.node.watch import ChainWatch

log = logging.getLogger(__name__)

DEADLINE_SECONDS = 20.0
"""For one answer."""

LOOK_SECONDS = 0.5
"""How often the height is looked at."""


@dataclass(slots=True, kw_only=True)
class AuditCounts:
    """What was seen since the start."""

    leaves_good: int = 0
    leaves_failed: int = 0
    folds_judged: int = 0
    """Blobs whose folds could be judged."""
    liars_named: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    """Failed proofs by URL of the node."""


class Auditor:
    """Audits for ever, in one event loop."""

    def __init__(
        self,
        engine: StoreEngine,
        chain: KeepingPort,
        watch: ChainWatch,
        key: bytes,
        *,
        questions: Executor,
        disk: Executor,
        every_blocks: int,
        chance: random.Random,
    ) -> None:
        """Draw with ``chance``, which nobody else should be able to foresee."""
        self._engine = engine
        self._chain = chain
        self._watch = watch
        self._key = key
        self._questions = questions
        self._disk = disk
        self._every_blocks = every_blocks
        self._chance = chance
        self._links = SeatLinks(Traffic(), BufferPool(), has_bulk=False)
        self.counts = AuditCounts()

    async def run(self) -> None:
        """Audit until cancelled."""
        due = 0
        try:
            while True:
                view = self._watch.view
                if view is not None and view.height >= due:
                    due = view.height + self._every_blocks
                    try:
                        await self._audit_one(view.height)
                    except (ChainUnreachable, UnknownShard) as error:
                        log.info("no audit at height %d: %s", view.height, error)
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            await self._links.close()

    async def _audit_one(self, height: int) -> None:
        start = self._chance.randbytes(34)
        held = await run_in(self._disk, lambda: self._engine.index.get_page(start, limit=1))
        held = held or await run_in(self._disk, lambda: self._engine.index.get_page(b"", limit=1))
        if not held:
            return
        blob = held[0].blob
        loop = asyncio.get_running_loop()
        facts = await loop.run_in_executor(self._questions, self._chain.get_facts, blob)
        if not facts.is_live or facts.release <= height + self._every_blocks:
            return
        committee = await loop.run_in_executor(self._questions, self._chain.get_committee, facts.epoch)
        try:
            header = decode_header(await run_in(self._disk, self._engine.get_header, blob))
        except MalformedHeader as error:
            raise UnknownShard(blob=blob, shard=None) from error
        if len(committee.seats) < header.num_shards:
            return
        await self.audit_leaves(blob, header, committee)
        await self.audit_folds(blob, header, committee)

    async def audit_leaves(self, blob: BlobId, header: BlobHeader, committee: Committee) -> None:
        """Ask each other seat for one random leaf."""
        num_leaves = compute_num_leaves(compute_shard_bytes(header.size_bytes, header.num_data), header.leaf_bytes)
        for seat in committee.seats[: header.num_shards]:
            if seat.key == self._key:
                continue
            leaf = self._chance.randrange(num_leaves)
            try:
                await fetch_leaf(self._links.get_session(), seat, blob, header, leaf, deadline_seconds=DEADLINE_SECONDS)
            except SeatFailed as failure:
                self.counts.leaves_failed += 1
                self._blame(seat, blob, failure.fault.reason)
            else:
                self.counts.leaves_good += 1

    async def audit_folds(self, blob: BlobId, header: BlobHeader, committee: Committee) -> None:
        """Ask all seats for the fold of their shard under fresh coefficients, and name the liars."""
        nonce = self._chance.randbytes(NONCE_BYTES)
        folds: dict[int, bytes] = {}
        for seat in committee.seats[: header.num_shards]:
            try:
                if seat.key == self._key:
                    folds[seat.index] = await run_in(self._disk, fold_shard, self._engine, blob, seat.index, nonce)
                else:
                    folds[seat.index] = await fetch_fold(
                        self._links.get_session(), seat, blob, header, nonce, deadline_seconds=DEADLINE_SECONDS
                    )
            except UnknownShard:
                continue
            except SeatFailed as failure:
                log.info("no fold: %s", failure)
        verdict = judge_folds(header, folds)
        if not verdict.is_certain:
            return
        self.counts.folds_judged += 1
        self.counts.liars_named += len(verdict.liars)
        for liar in verdict.liars:
            self._blame(committee.seats[liar], blob, "its fold is off the code that the others span")

    def _blame(self, seat: Seat, blob: BlobId, reason: str) -> None:
        self.counts.faults[seat.url] += 1
        log.warning("audit of blob %s: seat %d (%s): %s", blob.hex(), seat.index, seat.url, reason)
