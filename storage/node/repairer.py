"""Finds shards that this node should have and has not, and rebuilds them (DESIGN 6; SPEC.md 11).

What is missing follows from the world, not from a queue: other seats' inventories, less what is kept here, as far as
the chain keeps it. So a restart loses nothing, and a node whose disk is gone fills a new one. Losses that are noticed
meanwhile (a read, a scrub, the start) are seen to at once. Invariant: no answer of the chain, no repair.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass

from aiohttp import ClientError

from da.core.blob import compute_shard_bytes, encode_header
from da.core.errors import SeatFailed
from da.core.scheme import compute_tier_scheme
from da.core.types import BlobId, Committee, Epoch, Height, Seat, ShardIndex
from da.counting import Traffic
from da.links import SeatLinks
from storage.core.errors import (
    MalformedRequest,
    RebuildFailed,
    StorageError,
)
from storage.core.repair import BlobFacts, MissingShard, plan_missing, plan_repairs, should_rebuild
from storage.node.inventory import INVENTORY_PATH, PAGE_BLOBS, decode_inventory
from storage.node.pacing import Pacer
from storage.node.rebuilding import rebuild_shard
from storage.node.upload import ShardOffer
from storage.node.watch import ChainView, get_my_seats
from storage.node.workplace import Workplace

log = logging.getLogger(__name__)

DEADLINE_SECONDS = 30.0
"""For one answer of another seat."""

IGNORED_BLOCKS = 1_000
"""Blobs that were not worth rebuilding are asked about again after this (5 minutes)."""

LOOK_SECONDS = 0.5
"""How often noticed losses are looked for."""


@dataclass(slots=True, kw_only=True)
class RepairCounts:
    """What was done since the start."""

    found: int = 0
    """Missing shards that were planned."""
    rebuilt: int = 0
    failed: int = 0
    bytes_read: int = 0
    bytes_rebuilt: int = 0
    seat_faults: int = 0
    """Seats that failed or lied while they were read from."""


class Repairer:
    """Repairs for ever, in one event loop."""

    def __init__(self, work: Workplace, *, bytes_per_second: int, every_blocks: int) -> None:
        """Rebuild what belongs to the node's seats; compare inventories every ``every_blocks``."""
        self._work = work
        self._pacer = Pacer(bytes_per_second)
        self._every_blocks = every_blocks
        self._links = SeatLinks(Traffic(), has_bulk=True)
        self._ignored: set[BlobId] = set()
        self._ignored_until = 0
        self.counts = RepairCounts()

    async def run(self) -> None:
        """Repair until cancelled."""
        due = 0
        try:
            while True:
                view = self._work.watch.view
                has_losses = self._work.engine.losses.has_some()
                if view is not None and (has_losses or view.height >= due):
                    is_round = view.height >= due
                    if is_round:
                        due = view.height + self._every_blocks
                    try:
                        await self._repair(view, with_inventories=is_round)
                    except (
                        StorageError,
                        OSError,
                    ) as error:  # chain or own disk: tried again, the node goes on
                        self._work.engine.health.note(error)
                        log.warning("nothing repaired at height %d: %s", view.height, error)
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            await self._links.close()

    async def _repair(self, view: ChainView, *, with_inventories: bool) -> None:
        missing = await self._find_losses(self._work.engine.losses.take_all())
        if with_inventories:
            known = {(item.facts.blob, item.shard) for item in missing}
            missing += [item for item in await self._compare(view) if (item.facts.blob, item.shard) not in known]
        plan = plan_repairs(missing, view.height)
        self.counts.found += len(plan)
        for item in plan:
            await self._rebuild(item)

    async def _find_losses(self, losses: Iterable[tuple[BlobId, ShardIndex]]) -> list[MissingShard]:
        found = []
        for blob, shard in losses:
            facts = await self._work.ask_facts(blob)
            committee = await self._work.ask_committee(facts.epoch)
            if shard not in get_my_seats(committee, self._work.key):
                continue
            scheme = compute_tier_scheme(len(committee.seats), facts.tier)
            found.append(MissingShard(facts=facts, shard=shard, holders=(), num_data=scheme.num_data))
        return found

    async def _compare(self, view: ChainView) -> list[MissingShard]:
        """Return what other seats have and this node has not, for all epochs that it may have seats in."""
        if view.height >= self._ignored_until:
            self._ignored.clear()
            self._ignored_until = view.height + IGNORED_BLOCKS
        epochs = await self._work.on_disk(self._work.engine.index.get_epochs)
        epochs |= {committee.epoch for committee in view.committees}
        missing: list[MissingShard] = []
        for epoch in sorted(epochs, reverse=True):
            committee = await self._work.ask_committee(epoch)
            for shard in get_my_seats(committee, self._work.key):
                missing += await self._compare_epoch(committee, shard)
        return missing

    async def _compare_epoch(self, committee: Committee, shard: ShardIndex) -> list[MissingShard]:
        others = [seat for seat in committee.seats if seat.key != self._work.key]
        answers = await asyncio.gather(*(self._fetch_inventory(seat, committee.epoch) for seat in others))
        inventories = {seat.index: blobs for seat, blobs in zip(others, answers, strict=True)}
        own = await self._work.on_disk(self._work.engine.index.get_blobs_with, shard)
        found = []
        for blob, holders in plan_missing(inventories, own).items():
            if blob in self._ignored:
                continue
            facts = await self._work.ask_facts(blob)
            if facts.epoch != committee.epoch or not should_rebuild(facts, Height(0)):
                self._ignored.add(blob)  # temporary, not certified yet, or over: asked again after a while
                continue
            scheme = compute_tier_scheme(len(committee.seats), facts.tier)
            found.append(MissingShard(facts=facts, shard=shard, holders=holders, num_data=scheme.num_data))
        return found

    async def _fetch_inventory(self, seat: Seat, epoch: Epoch) -> list[BlobId]:
        """Return a seat's blobs of an epoch; what can't be read counts as nothing, for now."""
        blobs: list[BlobId] = []
        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                while True:
                    after = blobs[-1].hex() if blobs else ""
                    url = f"{seat.url.rstrip('/')}{INVENTORY_PATH}?epoch={epoch}&after={after}"
                    async with self._links.get_session().get(url, allow_redirects=False) as response:
                        page = decode_inventory(await response.content.read(PAGE_BLOBS * 32 + 1))
                        if response.status != 200 or (blobs and page and page[0] <= blobs[-1]):
                            raise MalformedRequest(f"status {response.status}")
                    blobs += page
                    if len(page) < PAGE_BLOBS:
                        return blobs
        except (ClientError, TimeoutError, MalformedRequest, OSError) as error:
            log.info("no inventory of seat %d (%s): %s", seat.index, seat.url, error)
            return blobs

    async def _rebuild(self, item: MissingShard) -> None:
        facts = await self._work.ask_facts(item.facts.blob)  # again: time has passed since it was planned
        view = self._work.watch.view
        if view is None or not should_rebuild(facts, view.height):
            return
        committee = await self._work.ask_committee(facts.epoch)
        try:
            offer = await self._make_offer(facts, item.shard, committee)
            outcome = await rebuild_shard(
                self._work.engine,
                self._links,
                offer,
                committee,
                pacer=self._pacer,
                executor=self._work.disk,
                deadline_seconds=DEADLINE_SECONDS,
            )
        except (StorageError, OSError) as error:
            self.counts.failed += 1
            self._work.engine.health.note(error)
            log.error("shard %d of blob %s was not rebuilt: %s", item.shard, facts.blob.hex(), error)
            return
        self.counts.rebuilt += 1
        self.counts.bytes_read += outcome.bytes_read
        self.counts.bytes_rebuilt += outcome.bytes_rebuilt
        self.counts.seat_faults += len(outcome.faults)
        for fault in outcome.faults:
            log.warning("while rebuilding: seat %d (%s): %s", fault.seat, fault.url, fault.reason)
        log.info("shard %d of blob %s rebuilt", item.shard, facts.blob.hex())

    async def _make_offer(self, facts: BlobFacts, shard: ShardIndex, committee: Committee) -> ShardOffer:
        faults = []
        for seat in committee.seats:
            if seat.key == self._work.key:
                continue
            try:
                header = await self._links.fetch_header(seat, facts.blob, deadline_seconds=DEADLINE_SECONDS)
            except SeatFailed as failure:
                faults.append(failure.fault)
                continue
            return ShardOffer(
                blob=facts.blob,
                shard=shard,
                header=header,
                header_bytes=encode_header(header),
                shard_bytes=compute_shard_bytes(header.size_bytes, header.num_data),
                tier=facts.tier,
                epoch=facts.epoch,
                expiry=facts.expiry,
            )
        raise RebuildFailed(blob=facts.blob, shard=shard, expected=1, got=0, faults=faults)
