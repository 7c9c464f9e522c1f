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

from da.auditing import fetch_answer
from da.core.blob import compute_shard_bytes, encode_header
from da.core.errors import SeatFailed, SeatFault
from da.core.scheme import compute_num_faulty, compute_scheme, compute_tier_scheme
from da.core.types import BlobId, Committee, Epoch, Height, Seat, ShardIndex
from da.counting import Traffic
from da.links import SeatLinks
from storage.core.errors import (
    MalformedRequest,
    RebuildFailed,
    StorageError,
)
from storage.core.repair import BlobFacts, MissingShard, compute_window_end, plan_missing, plan_repairs, should_rebuild
from storage.node.inventory import INVENTORY_PATH, PAGE_BLOBS, decode_inventory
from storage.node.pacing import Pacer
from storage.node.rebuilding import rebuild_shard
from storage.node.upload import ShardOffer
from storage.node.watch import ChainView, get_my_seats
from storage.node.workplace import Workplace

log = logging.getLogger(__name__)

DEADLINE_SECONDS = 30.0
"""For one seat's inventory."""

HEADER_SECONDS = 5.0
"""For a blob's header, of a few kilobytes."""

STREAM_SECONDS = 10.0
"""For each MiB of a shard: who is slower than 0.8 Mbit/s is left out for another."""

AVOID_SECONDS = 60.0
"""A seat that failed or lied is asked last for so long: it must not cost its deadline for every shard."""

MAX_PAGES = 64
"""Of one seat's inventory in one round, 262,144 names; the next round goes on behind them."""

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
        self._avoided: dict[str, float] = {}
        # When seats that failed, by their URL, may be asked first again.
        self._after: dict[Epoch, BlobId] = {}
        # Where the comparison of an epoch's inventories goes on; absent: from the beginning.
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
                        due = view.height + (1 if self._after else self._every_blocks)
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
        after = self._after.pop(committee.epoch, BlobId(b""))
        answers = await asyncio.gather(*(self._fetch_inventory(seat, committee.epoch, after) for seat in others))
        scheme = compute_scheme(len(committee.seats))
        stop = compute_window_end(
            [blobs[-1] if is_cut else None for blobs, is_cut in answers],
            num_liars=compute_num_faulty(len(committee.seats)),
        )
        if stop is not None:
            self._after[committee.epoch] = stop
        inventories = {
            seat.index: [blob for blob in blobs if stop is None or blob <= stop]
            for seat, (blobs, _) in zip(others, answers, strict=True)
        }
        own = await self._work.on_disk(self._work.engine.index.get_blobs_with, shard)
        found = []
        for blob, holders in plan_missing(inventories, own, least_holders=scheme.num_data).items():
            if blob in self._ignored:
                continue
            facts = await self._work.ask_facts(blob)
            if facts.epoch != committee.epoch or not should_rebuild(facts, Height(0)):
                self._ignored.add(blob)  # temporary, not certified yet, or over: asked again after a while
                continue
            num_data = compute_tier_scheme(len(committee.seats), facts.tier).num_data
            found.append(MissingShard(facts=facts, shard=shard, holders=holders, num_data=num_data))
        return found

    async def _fetch_inventory(self, seat: Seat, epoch: Epoch, after: BlobId) -> tuple[list[BlobId], bool]:
        """Return a seat's blobs of an epoch behind ``after``, and whether there may be more than were asked for.

        What can't be read counts as nothing, for now.
        """
        blobs: list[BlobId] = []
        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                for _ in range(MAX_PAGES):
                    last = blobs[-1] if blobs else after
                    path = f"{INVENTORY_PATH}?epoch={epoch}&after={last.hex()}"
                    answer = await fetch_answer(
                        self._links.get_session(), seat, path, DEADLINE_SECONDS, max_bytes=PAGE_BLOBS * 32
                    )
                    page = decode_inventory(answer)
                    if page and page[0] <= last:
                        raise MalformedRequest("an inventory that goes back")
                    blobs += page
                    if len(page) < PAGE_BLOBS:
                        return blobs, False
                return blobs, True
        except (SeatFailed, TimeoutError, MalformedRequest) as error:
            log.info("no inventory of seat %d (%s): %s", seat.index, seat.url, error)
            return blobs, False

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
                deadline_seconds=STREAM_SECONDS,
                asked_last=self._get_avoided(committee),
            )
        except (StorageError, OSError) as error:
            self.counts.failed += 1
            self._work.engine.health.note(error)
            if isinstance(error, RebuildFailed):
                for fault in error.faults:
                    self._avoid(fault)
            log.error("shard %d of blob %s was not rebuilt: %s", item.shard, facts.blob.hex(), error)
            return
        self.counts.rebuilt += 1
        self.counts.bytes_read += outcome.bytes_read
        self.counts.bytes_rebuilt += outcome.bytes_rebuilt
        self.counts.seat_faults += len(outcome.faults)
        for fault in outcome.faults:
            self._avoid(fault)
            log.warning("while rebuilding: seat %d (%s): %s", fault.seat, fault.url, fault.reason)
        log.info("shard %d of blob %s rebuilt", item.shard, facts.blob.hex())

    def _avoid(self, fault: SeatFault) -> None:
        self._avoided[fault.url] = asyncio.get_running_loop().time() + AVOID_SECONDS

    def _get_avoided(self, committee: Committee) -> frozenset[ShardIndex]:
        """Return the seats that failed a short while ago."""
        now = asyncio.get_running_loop().time()
        self._avoided = {url: until for url, until in self._avoided.items() if until > now}
        return frozenset(seat.index for seat in committee.seats if seat.url in self._avoided)

    async def _make_offer(self, facts: BlobFacts, shard: ShardIndex, committee: Committee) -> ShardOffer:
        faults = []
        avoided = self._get_avoided(committee)
        for seat in sorted(committee.seats, key=lambda seat: seat.index in avoided):
            if seat.key == self._work.key:
                continue
            try:
                header = await self._links.fetch_header(seat, facts.blob, deadline_seconds=HEADER_SECONDS)
            except SeatFailed as failure:
                faults.append(failure.fault)
                self._avoid(failure.fault)
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
