"""Disperse a blob to a committee, and read it back from any k honest seats (DESIGN 5; da/SPEC.md, *Client*).

Nodes are trusted with nothing: receipts are verified, every shard is checked against its root while it comes in, the
decoded blob is encoded again. Invariant: ``disperse`` returns a certificate that verifies, or raises and certifies
nothing; ``retrieve`` returns the bytes that the blob id names, or raises. Both name the seats that failed, and why.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from da.auditing import Sampling, sample_blob
from da.batch_dispersal import BatchDispersal, BatchSender
from da.codec import decode_blob, encode_blob
from da.core.blob import MAX_BLOB_BYTES, STRIPE_BYTES, BlobHeader, compute_blob_id, compute_shard_bytes
from da.core.errors import (
    BlobTooLarge,
    FaultKind,
    HeaderUnavailable,
    InconsistentBlob,
    NotEnoughReceipts,
    NotEnoughShards,
    SeatFailed,
    SeatFault,
)
from da.core.inconsistency import LeafEvidence, find_evidence
from da.core.merkle import BULK_LEAF_BYTES, PAYLOAD_LEAF_BYTES
from da.core.receipt import Receipt
from da.core.scheme import choose_scheme, is_small
from da.core.types import (
    BlobId,
    Certificate,
    Committee,
    Height,
    ReceiptTerms,
    Scheme,
    Seat,
    Tier,
)
from da.counting import Traffic
from da.gathering import Gathering, cancel, sort_faults
from da.hedging import MIN_BYTES_PER_SECOND, PATIENCE_SECONDS, compute_hedge_time
from da.links import SeatLinks
from da.memory import BufferPool
from da.protocol import PutRequest
from da.range_reader import RangeReader
from da.shard_io import Progress, ShardBody, make_body
from da.slab_feed import SlabFeed, compute_stream_header
from da.slab_reader import SlabReader
from da.slabs import Source

LOOK_SECONDS = 0.2
"""How often running fetches are compared with the minimum rate."""

PARALLEL_BYTES = 4 * 2**20
"""Smaller blobs are coded in one thread: handing over would take longer."""

MAX_CODING_THREADS = 4
"""Shards are hashed and folded in so many threads, or as many as there are processors."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispersal:
    """What came of a dispersal."""

    certificate: Certificate
    """At least s receipts, verified."""
    faults: tuple[SeatFault, ...]
    """The seats that did not sign, by seat, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrieveReport:
    """How a blob was read."""

    seats: tuple[int, ...]
    """The seats whose shards were used, ascending."""
    faults: tuple[SeatFault, ...]
    """The seats that were of no use, by seat, and why: dead, slow or lying."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retrieved:
    """A blob, verified."""

    data: bytes
    """Exactly the bytes that the id names."""
    header: BlobHeader
    """Its code, size and roots."""
    report: RetrieveReport
    """Who helped and who did not."""


class AsyncBlobClient:
    """Writes and reads blobs; use as ``async with AsyncBlobClient() as client``, in one event loop."""

    def __init__(self, *, deadline_seconds: float = 30.0, has_bulk: bool = True) -> None:
        self.deadline_seconds = deadline_seconds
        """Longest wait for one seat, beside what its bytes need at the minimum rate."""
        self.traffic = Traffic()
        self._pool = BufferPool()
        self._links = SeatLinks(self.traffic, self._pool, has_bulk)
        self._threads = ThreadPoolExecutor(min(MAX_CODING_THREADS, os.cpu_count() or 1), thread_name_prefix="da-code")
        self._has_warned = False

    async def __aenter__(self) -> AsyncBlobClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self._links.close()
        self._threads.shutdown(wait=False)

    async def disperse(
        self,
        data: bytes | bytearray | memoryview,
        *,
        committee: Committee,
        genesis_hash: bytes,
        tier: Tier,
        expiry: Height,
        leaf_bytes: int = PAYLOAD_LEAF_BYTES,
        num_data: int | None = None,
    ) -> Dispersal:
        """Encode ``data``, send each seat its shard, and gather receipts into a certificate.

        ``num_data`` is an explicit k, where the seats take one; None: the committee's own.

        Raises:
            NotEnoughReceipts: fewer than s seats signed; names each of the others.
            BlobTooLarge, InvalidScheme: nothing was sent.
        """
        scheme = choose_scheme(len(committee.seats), num_data, tier)
        self._warn_if_small(scheme.num_shards)
        encoded = await asyncio.to_thread(
            encode_blob,
            data,
            num_data=scheme.num_data,
            num_shards=scheme.num_shards,
            leaf_bytes=leaf_bytes,
            executor=self._threads if len(data) >= PARALLEL_BYTES else None,
            pool=self._pool,
        )
        terms = ReceiptTerms(
            genesis_hash=genesis_hash,
            epoch=committee.epoch,
            blob=encoded.blob,
            size_bytes=encoded.header.size_bytes,
            tier=tier,
            expiry=expiry,
        )
        gathering: Gathering[Receipt] = Gathering(num_needed=scheme.num_signatures)
        for seat, pieces in zip(committee.seats, encoded.shards, strict=True):
            gathering.start(seat, self._send(seat, encoded.header, make_body(pieces), terms))
        receipts, faults = await gathering.run()
        if not faults:
            self._pool.give_back(*encoded.parity)  # where a seat failed, its socket may still hold on to them
        return _certify(receipts, faults, terms, scheme)

    async def disperse_stream(
        self,
        source: Source,
        *,
        committee: Committee,
        genesis_hash: bytes,
        tier: Tier,
        expiry: Height,
        leaf_bytes: int = BULK_LEAF_BYTES,
        num_data: int | None = None,
    ) -> Dispersal:
        """Do the same for bytes that need not fit into memory; they are read three times.

        Tried again after a failure, it sends only the shards that are not kept yet.

        Raises:
            NotEnoughReceipts, BlobTooLarge, InvalidScheme: as ``disperse``.
            SourceChanged: nothing is certified.
        """
        if source.size_bytes <= STRIPE_BYTES:
            data = bytearray(source.size_bytes)
            await asyncio.to_thread(source.read_into, 0, memoryview(data))
            return await self.disperse(
                data,
                committee=committee,
                genesis_hash=genesis_hash,
                tier=tier,
                expiry=expiry,
                leaf_bytes=leaf_bytes,
                num_data=num_data,
            )
        if source.size_bytes > MAX_BLOB_BYTES:
            raise BlobTooLarge(limit_bytes=MAX_BLOB_BYTES, got_bytes=source.size_bytes)
        scheme = choose_scheme(len(committee.seats), num_data, tier)
        self._warn_if_small(scheme.num_shards)
        header = await asyncio.to_thread(
            compute_stream_header, source, scheme, leaf_bytes=leaf_bytes, pool=self._pool, executor=self._threads
        )
        terms = ReceiptTerms(
            genesis_hash=genesis_hash,
            epoch=committee.epoch,
            blob=compute_blob_id(header),
            size_bytes=header.size_bytes,
            tier=tier,
            expiry=expiry,
        )
        gathering: Gathering[Receipt] = Gathering(num_needed=scheme.num_signatures)
        feed = SlabFeed(
            source=source,
            header=header,
            num_needed=scheme.num_signatures,
            pool=self._pool,
            executor=self._threads,
            drop=gathering.drop,
        )
        for seat in committee.seats:
            gathering.start(seat, self._send_fed(seat, header, feed, terms))
        feeding, gathered = asyncio.create_task(feed.run()), asyncio.create_task(gathering.run())
        try:
            await asyncio.wait({feeding, gathered}, return_when=asyncio.FIRST_COMPLETED)
            if feeding.done():
                feeding.result()
            receipts, faults = await gathered
        finally:
            await cancel((feeding, gathered))
        return _certify(receipts, faults, terms, scheme)

    async def disperse_batch(
        self,
        blobs: Sequence[bytes],
        *,
        committee: Committee,
        genesis_hash: bytes,
        tier: Tier,
        expiry: Height,
        leaf_bytes: int = PAYLOAD_LEAF_BYTES,
    ) -> BatchDispersal:
        """Disperse many blobs of at most 64 KiB, with one signature of a seat for hundreds of them.

        A seat keeps a batch as a whole or not at all.

        Raises:
            NotEnoughReceipts: fewer than s seats signed some batch.
            BlobTooLarge: nothing was sent.
        """
        self._warn_if_small(len(committee.seats))
        sender = BatchSender(
            links=self._links,
            committee=committee,
            genesis_hash=genesis_hash,
            tier=tier,
            expiry=expiry,
            leaf_bytes=leaf_bytes,
            deadline_seconds=self.deadline_seconds,
        )
        return await sender.disperse(blobs)

    async def retrieve(self, blob: BlobId, *, committee: Committee, max_bytes: int) -> Retrieved:
        """Read ``blob`` from the committee that keeps it; at most ``max_bytes`` of it.

        Raises:
            HeaderUnavailable: no seat knows the blob.
            BlobTooLarge: its header says more than ``max_bytes``; no shard was fetched.
            NotEnoughShards: fewer than k seats gave their shard; names each.
            InconsistentBlob: the blob was badly encoded; every reader gets this.
        """
        header, header_faults = await self._fetch_any_header(blob, committee)
        if header.size_bytes > max_bytes:
            raise BlobTooLarge(limit_bytes=max_bytes, got_bytes=header.size_bytes)
        shards, faults = await self._fetch_any_shards(blob, header, committee, header_faults)
        try:
            data = await asyncio.to_thread(decode_blob, header, shards, pool=self._pool)
        except InconsistentBlob as error:
            error.proof = await self._find_proof(blob, header, committee, shards, error)
            raise
        self._pool.give_back(*shards.values())
        report = RetrieveReport(seats=tuple(sorted(shards)), faults=faults)
        return Retrieved(data=data, header=header, report=report)

    async def _find_proof(
        self,
        blob: BlobId,
        header: BlobHeader,
        committee: Committee,
        shards: dict[int, memoryview],
        error: InconsistentBlob,
    ) -> LeafEvidence | None:
        """Read the shard that differs, and return the leaves that prove it; None when its seat does not give it."""
        assert error.evidence is not None
        others = [error.evidence.shard] if error.evidence.shard not in shards else []
        extra: dict[int, memoryview] = {}
        for index in others:
            try:
                extra[index] = await self._links.fetch_shard(
                    committee.seats[index],
                    blob,
                    header,
                    deadline_seconds=self._compute_deadline(header),
                    progress=Progress(),
                )
            except SeatFailed as failure:
                _log.info("no proof against blob %s: %s", blob.hex(), failure)
        return await asyncio.to_thread(find_evidence, header, shards | extra)

    async def retrieve_to_file(
        self,
        blob: BlobId,
        path: Path,
        *,
        committee: Committee,
        max_bytes: int,
        on_progress: Callable[[int], None] = lambda _: None,
    ) -> RetrieveReport:
        """Read ``blob`` into the file ``path``, which appears when all of it is verified; memory stays small.

        Raises:
            HeaderUnavailable, BlobTooLarge, NotEnoughShards, InconsistentBlob: as ``retrieve``.
        """
        header, faults = await self._fetch_any_header(blob, committee)
        if header.size_bytes > max_bytes:
            raise BlobTooLarge(limit_bytes=max_bytes, got_bytes=header.size_bytes)
        reader = SlabReader(
            links=self._links,
            blob=blob,
            header=header,
            committee=committee,
            deadline_seconds=self.deadline_seconds,
            pool=self._pool,
            on_progress=on_progress,
            faults=faults,
        )
        await reader.read(path)
        return RetrieveReport(seats=tuple(sorted(reader.used)), faults=sort_faults(reader.faults))

    async def open_ranges(self, blob: BlobId, *, committee: Committee) -> RangeReader:
        """Open ``blob`` for reading by ranges: only the leaves that hold them are fetched (da/range_reader.py).

        Raises:
            HeaderUnavailable: no seat knows the blob.
        """
        header, _ = await self._fetch_any_header(blob, committee)
        return RangeReader(self._links.get_session, blob, header, committee, deadline_seconds=self.deadline_seconds)

    async def sample(self, blob: BlobId, *, committee: Committee, num_samples: int) -> Sampling:
        """Ask ``num_samples`` random seats for a random leaf each, checked against the header.

        Raises:
            HeaderUnavailable: no seat knows the blob.
        """
        header, _ = await self._fetch_any_header(blob, committee)
        return await sample_blob(
            self._links.get_session(),
            blob,
            header,
            committee,
            num_samples=num_samples,
            chance=random.SystemRandom(),
            deadline_seconds=self.deadline_seconds,
        )

    async def _send(self, seat: Seat, header: BlobHeader, body: ShardBody, terms: ReceiptTerms) -> Receipt:
        request = PutRequest(
            blob=terms.blob, seat=seat.index, epoch=terms.epoch, tier=terms.tier, expiry=terms.expiry, header=header
        )
        return await self._links.send_shard(
            seat, request, body, terms=terms, deadline_seconds=self._compute_deadline(header)
        )

    async def _send_fed(self, seat: Seat, header: BlobHeader, feed: SlabFeed, terms: ReceiptTerms) -> Receipt:
        body = ShardBody(
            num_bytes=compute_shard_bytes(header.size_bytes, header.num_data),
            open_pieces=lambda: feed.iterate(seat.index),
        )
        try:
            return await self._send(seat, header, body, terms)
        finally:
            await feed.leave(seat.index)

    async def _fetch_any_header(self, blob: BlobId, committee: Committee) -> tuple[BlobHeader, dict[int, SeatFault]]:
        """Ask seat after seat, the next when one fails or takes long; starts at a seat that the blob id picks."""
        first = blob[0] % max(1, len(committee.seats))
        waiting = deque(committee.seats[first:] + committee.seats[:first])
        running: set[asyncio.Task[BlobHeader]] = set()
        faults: dict[int, SeatFault] = {}
        try:
            while waiting or running:
                if waiting:
                    call = self._links.fetch_header(waiting.popleft(), blob, deadline_seconds=self.deadline_seconds)
                    running.add(asyncio.create_task(call))
                timeout = PATIENCE_SECONDS if waiting else None
                done, running = await asyncio.wait(running, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    try:
                        return task.result(), faults
                    except SeatFailed as failure:
                        faults[failure.fault.seat] = failure.fault
        finally:
            await cancel(running)
        raise HeaderUnavailable(blob=blob, faults=sort_faults(faults))

    async def _fetch_any_shards(
        self, blob: BlobId, header: BlobHeader, committee: Committee, faults: dict[int, SeatFault]
    ) -> tuple[dict[int, memoryview], tuple[SeatFault, ...]]:
        """Return k verified shards: data shards first, seats that failed before last, substitutes for slow ones."""
        loop = asyncio.get_running_loop()
        deadline_seconds = self._compute_deadline(header)
        seats = committee.seats[: header.num_shards]
        waiting = deque(sorted(seats, key=lambda seat: (seat.index in faults, seat.index)))
        running: dict[asyncio.Task[memoryview], _Fetch] = {}
        shards: dict[int, memoryview] = {}
        start, shard_bytes = loop.time(), compute_shard_bytes(header.size_bytes, header.num_data)
        first_done: float | None = None
        half_done: float | None = None
        has_hedged = False
        try:
            while len(shards) < header.num_data:
                hedge_time = compute_hedge_time(start, first_done, half_done, num_bytes=shard_bytes)
                if loop.time() >= hedge_time and not has_hedged:
                    has_hedged = True
                    for fetch in running.values():
                        fetch.is_late = True
                num_behind = sum(fetch.is_behind(loop.time()) for fetch in running.values())
                num_wanted = header.num_data - len(shards) + num_behind
                while waiting and len(running) < num_wanted:
                    fetch = _Fetch(seat=waiting.popleft(), start=loop.time())
                    call = self._links.fetch_shard(
                        fetch.seat,
                        blob,
                        header,
                        deadline_seconds=deadline_seconds,
                        progress=fetch.progress,
                    )
                    running[asyncio.create_task(call)] = fetch
                if len(running) + len(shards) < header.num_data:
                    break
                done, _ = await asyncio.wait(running, timeout=LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    seat = running.pop(task).seat
                    try:
                        shards[seat.index] = task.result()
                    except SeatFailed as failure:
                        faults[seat.index] = failure.fault
                if shards and first_done is None:
                    first_done = loop.time()
                if shards and 2 * len(shards) >= header.num_data and half_done is None:
                    half_done = loop.time()
        finally:
            await cancel(running)
        for fetch in running.values():
            if fetch.is_behind(loop.time()) or len(shards) < header.num_data:
                faults[fetch.seat.index] = fetch.describe(loop.time())
        good = dict(sorted(shards.items())[: header.num_data])
        if len(good) < header.num_data:
            raise NotEnoughShards(blob=blob, expected=header.num_data, got=len(good), faults=sort_faults(faults))
        return good, sort_faults(faults)

    def _warn_if_small(self, num_seats: int) -> None:
        if is_small(num_seats) and not self._has_warned:
            self._has_warned = True
            _log.warning("a committee of %d seats survives crashes at most, no liar; use 4 or more", num_seats)

    def _compute_deadline(self, header: BlobHeader) -> float:
        shard_bytes = compute_shard_bytes(header.size_bytes, header.num_data)
        return self.deadline_seconds + shard_bytes / MIN_BYTES_PER_SECOND


@dataclass(slots=True, kw_only=True)
class _Fetch:
    """One running fetch."""

    seat: Seat
    """Whom it asks."""
    start: float
    """Loop time, in seconds."""
    progress: Progress = field(default_factory=Progress)
    """How far it has come."""
    is_late: bool = False
    """Others were much faster."""

    def is_behind(self, now: float) -> bool:
        """Tell whether it is slower than the others, or than the minimum rate after the patience."""
        return self.is_late or self.progress.num_bytes < (now - self.start - PATIENCE_SECONDS) * MIN_BYTES_PER_SECOND

    def describe(self, now: float) -> SeatFault:
        """Return the fault of a fetch that was not waited for."""
        reason = f"{self.progress.num_bytes} bytes in {now - self.start:.1f} s, not waited for"
        return SeatFault(seat=self.seat.index, url=self.seat.url, kind=FaultKind.TIMEOUT, reason=reason)


def _certify(
    receipts: dict[int, Receipt], faults: tuple[SeatFault, ...], terms: ReceiptTerms, scheme: Scheme
) -> Dispersal:
    if len(receipts) < scheme.num_signatures:
        raise NotEnoughReceipts(expected=scheme.num_signatures, got=len(receipts), faults=faults)
    signatures = tuple((receipt.seat, receipt.signature) for receipt in receipts.values())
    return Dispersal(certificate=Certificate(terms=terms, signatures=signatures), faults=faults)
