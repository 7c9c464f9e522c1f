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
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from da.auditing import Sampling, sample_blob
from da.batch_dispersal import BatchDispersal, BatchSender
from da.blob_buffer import BlobBuffer
from da.codec import encode_blob, finish_blob
from da.core.blob import MAX_BLOB_BYTES, STRIPE_BYTES, BlobHeader, compute_blob_id
from da.core.errors import BlobTooLarge, InconsistentBlob
from da.core.merkle import BULK_LEAF_BYTES, PAYLOAD_LEAF_BYTES
from da.core.scheme import choose_scheme, is_small
from da.core.types import BlobId, Committee, Height, Scheme, Tier
from da.counting import Traffic
from da.dispersal import Dispersal, ShardSender
from da.gathering import sort_faults
from da.links import SeatLinks
from da.memory import BufferPool
from da.range_reader import RangeReader
from da.retrieval import Retrieved, RetrieveReport, ShardFetcher
from da.slab_feed import compute_stream_header
from da.slab_reader import SlabReader
from da.slabs import Source

PARALLEL_BYTES = 4 * 2**20
"""Smaller blobs are coded in one thread: handing over would take longer."""

MAX_CODING_THREADS = 4
"""Shards are hashed and folded in so many threads, or as many as there are processors."""

_log = logging.getLogger(__name__)


class AsyncBlobClient:
    """Writes and reads blobs; use as ``async with AsyncBlobClient() as client``, in one event loop."""

    def __init__(self, *, deadline_seconds: float = 30.0, has_bulk: bool = True) -> None:
        self.deadline_seconds = deadline_seconds
        """Longest wait for one seat, beside what its bytes need at the minimum rate."""
        self.traffic = Traffic()
        self._pool = BufferPool()
        self._links = SeatLinks(self.traffic, has_bulk)
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
        sender = self._make_sender(committee, genesis_hash, tier, expiry, num_data)
        encoded = await asyncio.to_thread(
            encode_blob,
            data,
            num_data=sender.scheme.num_data,
            num_shards=sender.scheme.num_shards,
            leaf_bytes=leaf_bytes,
            executor=self._choose_threads(len(data)),
            pool=self._pool,
        )
        return await sender.send_blob(encoded)

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
        sender = self._make_sender(committee, genesis_hash, tier, expiry, num_data)
        header = await self._compute_header(source, sender.scheme, leaf_bytes)
        return await sender.send_source(source, header, self._threads)

    async def identify(
        self, source: Source, *, committee: Committee, tier: Tier, leaf_bytes: int = BULK_LEAF_BYTES
    ) -> BlobId:
        """Return the id that ``disperse_stream`` would give the bytes; nothing is sent, and they are read twice.

        Raises:
            BlobTooLarge, SourceChanged: as there.
        """
        scheme = choose_scheme(len(committee.seats), None, tier)
        return compute_blob_id(await self._compute_header(source, scheme, leaf_bytes))

    async def _compute_header(self, source: Source, scheme: Scheme, leaf_bytes: int) -> BlobHeader:
        if source.size_bytes > MAX_BLOB_BYTES:
            raise BlobTooLarge(limit_bytes=MAX_BLOB_BYTES, got_bytes=source.size_bytes)
        return await asyncio.to_thread(
            compute_stream_header, source, scheme, leaf_bytes=leaf_bytes, pool=self._pool, executor=self._threads
        )

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
        fetcher = self._make_fetcher(committee)
        header, header_faults = await fetcher.fetch_header(blob)
        if header.size_bytes > max_bytes:
            raise BlobTooLarge(limit_bytes=max_bytes, got_bytes=header.size_bytes)
        buffer = BlobBuffer(header, self._pool)
        present, faults = await fetcher.fetch_shards(blob, buffer, header_faults)
        threads = self._choose_threads(header.size_bytes)
        try:
            data = await asyncio.to_thread(finish_blob, buffer, present, executor=threads)
        except InconsistentBlob as error:
            error.proof = await fetcher.find_proof(blob, buffer, present, error)
            raise
        report = RetrieveReport(seats=tuple(sorted(present)), faults=faults)
        return Retrieved(data=data, header=header, report=report)

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
        header, faults = await self._make_fetcher(committee).fetch_header(blob)
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
        header, _ = await self._make_fetcher(committee).fetch_header(blob)
        return RangeReader(self._links.get_session, blob, header, committee, deadline_seconds=self.deadline_seconds)

    async def sample(self, blob: BlobId, *, committee: Committee, num_samples: int) -> Sampling:
        """Ask ``num_samples`` random seats for a random leaf each, checked against the header.

        Raises:
            HeaderUnavailable: no seat knows the blob.
        """
        header, _ = await self._make_fetcher(committee).fetch_header(blob)
        return await sample_blob(
            self._links.get_session(),
            blob,
            header,
            committee,
            num_samples=num_samples,
            chance=random.SystemRandom(),
            deadline_seconds=self.deadline_seconds,
        )

    def _make_sender(
        self, committee: Committee, genesis_hash: bytes, tier: Tier, expiry: Height, num_data: int | None
    ) -> ShardSender:
        scheme: Scheme = choose_scheme(len(committee.seats), num_data, tier)
        self._warn_if_small(scheme.num_shards)
        return ShardSender(
            links=self._links,
            pool=self._pool,
            committee=committee,
            genesis_hash=genesis_hash,
            tier=tier,
            expiry=expiry,
            scheme=scheme,
            deadline_seconds=self.deadline_seconds,
        )

    def _make_fetcher(self, committee: Committee) -> ShardFetcher:
        return ShardFetcher(links=self._links, committee=committee, deadline_seconds=self.deadline_seconds)

    def _choose_threads(self, num_bytes: int) -> ThreadPoolExecutor | None:
        return self._threads if num_bytes >= PARALLEL_BYTES else None

    def _warn_if_small(self, num_seats: int) -> None:
        if is_small(num_seats) and not self._has_warned:
            self._has_warned = True
            _log.warning("a committee of %d seats survives crashes at most, no liar; use 4 or more", num_seats)
