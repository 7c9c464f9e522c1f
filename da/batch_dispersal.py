"""Dispersing many small blobs: coded together, sent together, signed once a seat (da/SPEC.md, *Batches*)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from da.batch import MAX_SMALL_BLOB_BYTES, encode_batch, encode_small_blobs, split_batches
from da.core.errors import BlobTooLarge, NotEnoughReceipts, SeatFault
from da.core.merkle import compute_paths, compute_top
from da.core.receipt import Receipt, compute_batch_message, compute_receipt_leaf
from da.core.scheme import compute_tier_scheme
from da.core.types import BatchPlace, Certificate, Committee, Height, Seat, ShardIndex, Tier
from da.gathering import Gathered, Gathering, cancel, gather_receipts
from da.hedging import MIN_BYTES_PER_SECOND
from da.links import SeatLinks
from da.protocol import BatchRequest
from da.shard_io import make_body

BATCHES_AT_ONCE = 3
"""One is coded, one is on its way, one is being made durable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchDispersal:
    """What came of a dispersal of many blobs."""

    certificates: tuple[Certificate, ...]
    """One for each blob, in their order."""
    faults: tuple[SeatFault, ...]
    """What kept a seat from signing one of the batches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSender:
    """Sends batches to one committee, under one set of terms."""

    links: SeatLinks
    committee: Committee
    genesis_hash: bytes
    tier: Tier
    expiry: Height
    leaf_bytes: int
    deadline_seconds: float
    """For one seat and batch, beside what its bytes need at the minimum rate."""

    async def disperse(self, blobs: Sequence[bytes]) -> BatchDispersal:
        """Disperse all ``blobs``; equal ones are sent once.

        Raises:
            NotEnoughReceipts: fewer than s seats signed some batch; others may be stored, and expire by themselves.
            BlobTooLarge: one is larger than 64 KiB; nothing was sent.
        """
        for data in blobs:
            if len(data) > MAX_SMALL_BLOB_BYTES:
                raise BlobTooLarge(limit_bytes=MAX_SMALL_BLOB_BYTES, got_bytes=len(data))
        unique = list(dict.fromkeys(bytes(data) for data in blobs))
        at_once = asyncio.Semaphore(BATCHES_AT_ONCE)
        tasks = [asyncio.create_task(self._disperse_batch(batch, at_once)) for batch in split_batches(unique)]
        try:
            outcomes = await asyncio.gather(*tasks)
        finally:
            await cancel(tasks)
        certificates = [certificate for outcome in outcomes for certificate in outcome.certificates]
        by_data = dict(zip(unique, certificates, strict=True))
        return BatchDispersal(
            certificates=tuple(by_data[bytes(data)] for data in blobs),
            faults=tuple(fault for outcome in outcomes for fault in outcome.faults),
        )

    async def _disperse_batch(self, blobs: list[bytes], at_once: asyncio.Semaphore) -> BatchDispersal:
        scheme = compute_tier_scheme(len(self.committee.seats), self.tier)
        request = BatchRequest(seat=ShardIndex(0), epoch=self.committee.epoch, tier=self.tier, expiry=self.expiry)
        async with at_once:
            coded = await asyncio.to_thread(encode_small_blobs, blobs, scheme, leaf_bytes=self.leaf_bytes)
            terms = [request.terms(self.genesis_hash, small.blob, small.header.size_bytes) for small in coded]
            leaves = [compute_receipt_leaf(each) for each in terms]
            top = compute_top(leaves)

            async def send_to(seats: Sequence[Seat], num_needed: int, begun: set[int]) -> Gathered:
                gathering: Gathering[Receipt] = Gathering(num_needed=num_needed)
                for seat in seats:
                    body = make_body([memoryview(encode_batch(coded, seat.index))])
                    call = self.links.send_batch(
                        seat,
                        replace(request, seat=seat.index),
                        body.call_when_opened(partial(begun.add, seat.index)),
                        message=compute_batch_message(top, len(coded), seat.index),
                        deadline_seconds=self.deadline_seconds + body.num_bytes / MIN_BYTES_PER_SECOND,
                    )
                    gathering.start(seat, call)
                return await gathering.run()

            receipts, faults, _ = await gather_receipts(self.committee.seats, scheme.num_signatures, send_to)
        if len(receipts) < scheme.num_signatures:
            raise NotEnoughReceipts(expected=scheme.num_signatures, got=len(receipts), faults=faults)
        signatures = tuple((receipt.seat, receipt.signature) for receipt in receipts.values())
        certificates = [
            Certificate(
                terms=each,
                signatures=signatures,
                batch=BatchPlace(index=index, num_blobs=len(coded), siblings=path),
            )
            for index, (each, path) in enumerate(zip(terms, compute_paths(leaves), strict=True))
        ]
        return BatchDispersal(certificates=tuple(certificates), faults=faults)
