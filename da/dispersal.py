"""Sending shards and gathering receipts: a blob in memory, or one that is coded slab by slab (da/SPEC.md, *Client*).

Invariant: what is returned holds at least s receipts, each verified under the terms; else nothing is certified.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

from da.codec import EncodedBlob
from da.core.blob import BlobHeader, compute_blob_id, compute_shard_bytes
from da.core.errors import NotEnoughReceipts, SeatFault
from da.core.receipt import Receipt
from da.core.types import Certificate, Committee, Height, ReceiptTerms, Scheme, Seat, Tier
from da.gathering import Gathered, Gathering, cancel, gather_receipts
from da.hedging import compute_deadline_seconds
from da.links import SeatLinks
from da.memory import BufferPool
from da.protocol import PutRequest
from da.shard_io import ShardBody, make_body
from da.slab_feed import SlabFeed
from da.slabs import Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispersal:
    """What came of a dispersal."""

    certificate: Certificate
    """At least s receipts, verified."""
    faults: tuple[SeatFault, ...]
    """The seats that did not sign, by seat, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardSender:
    """Sends the shards of blobs to one committee, under one set of terms."""

    links: SeatLinks
    pool: BufferPool
    committee: Committee
    genesis_hash: bytes
    tier: Tier
    expiry: Height
    scheme: Scheme
    deadline_seconds: float
    """For one seat, beside what its bytes need at the minimum rate."""

    async def send_blob(self, encoded: EncodedBlob) -> Dispersal:
        """Send a blob whose shards are in memory; its parity goes back to the pool.

        Raises:
            NotEnoughReceipts: fewer than s seats signed.
        """
        terms = self._make_terms(encoded.header)

        async def send_to(seats: Sequence[Seat], num_needed: int, begun: set[int]) -> Gathered:
            gathering: Gathering[Receipt] = Gathering(num_needed=num_needed)
            for seat in seats:
                body = make_body(encoded.shards[seat.index])
                gathering.start(seat, self._send(seat, encoded.header, body, terms, begun))
            return await gathering.run()

        receipts, faults, is_clean = await gather_receipts(self.committee.seats, self.scheme.num_signatures, send_to)
        if is_clean:
            self.pool.give_back(*encoded.parity)  # where a seat failed, its socket may still hold on to them
        return self._certify(receipts, faults, terms)

    async def send_source(self, source: Source, header: BlobHeader, threads: Executor) -> Dispersal:
        """Code ``source``, whose header is known, slab by slab, and send it meanwhile.

        Raises:
            NotEnoughReceipts: fewer than s seats signed.
            SourceChanged: nothing is certified.
        """
        terms = self._make_terms(header)

        async def send_to(seats: Sequence[Seat], num_needed: int, begun: set[int]) -> Gathered:
            gathering: Gathering[Receipt] = Gathering(num_needed=num_needed)
            feed = SlabFeed(
                source=source,
                header=header,
                seats=frozenset(seat.index for seat in seats),
                num_needed=num_needed,
                pool=self.pool,
                executor=threads,
                drop=gathering.drop,
            )
            for seat in seats:
                gathering.start(seat, self._send_fed(seat, header, feed, terms, begun))
            feeding, gathered = asyncio.create_task(feed.run()), asyncio.create_task(gathering.run())
            try:
                await asyncio.wait({feeding, gathered}, return_when=asyncio.FIRST_COMPLETED)
                if feeding.done():
                    feeding.result()
                return await gathered
            finally:
                await cancel((feeding, gathered))

        receipts, faults, _ = await gather_receipts(self.committee.seats, self.scheme.num_signatures, send_to)
        return self._certify(receipts, faults, terms)

    async def _send(
        self, seat: Seat, header: BlobHeader, body: ShardBody, terms: ReceiptTerms, begun: set[int]
    ) -> Receipt:
        """Send a shard; ``begun`` learns of the seat when its bytes begin to travel."""
        request = PutRequest(
            blob=terms.blob, seat=seat.index, epoch=terms.epoch, tier=terms.tier, expiry=terms.expiry, header=header
        )
        deadline_seconds = compute_deadline_seconds(self.deadline_seconds, body.num_bytes)
        noted = body.call_when_opened(lambda: begun.add(seat.index))
        return await self.links.send_shard(seat, request, noted, terms=terms, deadline_seconds=deadline_seconds)

    async def _send_fed(
        self, seat: Seat, header: BlobHeader, feed: SlabFeed, terms: ReceiptTerms, begun: set[int]
    ) -> Receipt:
        body = ShardBody(
            num_bytes=compute_shard_bytes(header.size_bytes, header.num_data),
            open_pieces=lambda: feed.iterate(seat.index),
        )
        try:
            return await self._send(seat, header, body, terms, begun)
        finally:
            await feed.leave(seat.index)

    def _make_terms(self, header: BlobHeader) -> ReceiptTerms:
        return ReceiptTerms(
            genesis_hash=self.genesis_hash,
            epoch=self.committee.epoch,
            blob=compute_blob_id(header),
            size_bytes=header.size_bytes,
            tier=self.tier,
            expiry=self.expiry,
        )

    def _certify(self, receipts: dict[int, Receipt], faults: tuple[SeatFault, ...], terms: ReceiptTerms) -> Dispersal:
        if len(receipts) < self.scheme.num_signatures:
            raise NotEnoughReceipts(expected=self.scheme.num_signatures, got=len(receipts), faults=faults)
        signatures = tuple((receipt.seat, receipt.signature) for receipt in receipts.values())
        return Dispersal(certificate=Certificate(terms=terms, signatures=signatures), faults=faults)
