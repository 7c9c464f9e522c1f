"""Fetching a header and k verified shards of a blob, past dead, slow and lying seats (da/SPEC.md, *Client*).

Data shards are asked for first and received where their bytes belong. Invariant: what a fetch leaves in the buffer
hashes to its shard's root, and no seat writes there when ``fetch_shards`` has returned.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass, field

from da.blob_buffer import BlobBuffer
from da.core.blob import BlobHeader, compute_shard_bytes
from da.core.errors import (
    FaultKind,
    HeaderUnavailable,
    InconsistentBlob,
    NotEnoughShards,
    SeatFailed,
    SeatFault,
)
from da.core.inconsistency import LeafEvidence, find_evidence
from da.core.types import BlobId, Committee, Seat
from da.gathering import cancel, sort_faults
from da.hedging import MIN_BYTES_PER_SECOND, PATIENCE_SECONDS, compute_deadline_seconds, compute_hedge_time
from da.links import SeatLinks
from da.shard_io import Progress

LOOK_SECONDS = 0.2
"""How often running fetches are compared with the minimum rate."""

_log = logging.getLogger(__name__)


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

    data: memoryview
    """Exactly the bytes that the id names, read-only; ``bytes(data)`` copies them. The memory is used again when nobody
    refers to it or to a slice of it."""
    header: BlobHeader
    """Its code, size and roots."""
    report: RetrieveReport
    """Who helped and who did not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardFetcher:
    """Reads from one committee."""

    links: SeatLinks
    committee: Committee
    deadline_seconds: float
    """For one seat, beside what its bytes need at the minimum rate."""

    async def fetch_header(self, blob: BlobId) -> tuple[BlobHeader, dict[int, SeatFault]]:
        """Ask seat after seat, the next when one fails or takes long; starts at a seat that the blob id picks.

        Raises:
            HeaderUnavailable: no seat gave a header that hashes to the id.
        """
        first = blob[0] % max(1, len(self.committee.seats))
        waiting = deque(self.committee.seats[first:] + self.committee.seats[:first])
        running: set[asyncio.Task[BlobHeader]] = set()
        faults: dict[int, SeatFault] = {}
        try:
            while waiting or running:
                if waiting:
                    call = self.links.fetch_header(waiting.popleft(), blob, deadline_seconds=self.deadline_seconds)
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

    async def fetch_shards(
        self, blob: BlobId, buffer: BlobBuffer, faults: dict[int, SeatFault]
    ) -> tuple[frozenset[int], tuple[SeatFault, ...]]:
        """Fill ``buffer`` with k verified shards; returns their seats, and the faults of others.

        Data shards first, seats that failed before last, substitutes for slow ones.

        Raises:
            NotEnoughShards: fewer than k seats gave theirs.
        """
        loop, header = asyncio.get_running_loop(), buffer.header
        seats = self.committee.seats[: header.num_shards]
        waiting = deque(sorted(seats, key=lambda seat: (seat.index in faults, seat.index)))
        running: dict[asyncio.Task[None], _Fetch] = {}
        good: set[int] = set()
        start, shard_bytes = loop.time(), compute_shard_bytes(header.size_bytes, header.num_data)
        first_done: float | None = None
        half_done: float | None = None
        has_hedged = False
        try:
            while len(good) < header.num_data:
                hedge_time = compute_hedge_time(start, first_done, half_done, num_bytes=shard_bytes)
                if loop.time() >= hedge_time and not has_hedged:
                    has_hedged = True
                    for fetch in running.values():
                        fetch.is_late = True
                num_behind = sum(fetch.is_behind(loop.time()) for fetch in running.values())
                num_wanted = header.num_data - len(good) + num_behind
                while waiting and len(running) < num_wanted:
                    fetch = _Fetch(seat=waiting.popleft(), start=loop.time())
                    running[asyncio.create_task(self._fetch(blob, buffer, fetch))] = fetch
                if len(running) + len(good) < header.num_data:
                    break
                done, _ = await asyncio.wait(running, timeout=LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    seat = running.pop(task).seat
                    try:
                        task.result()
                    except SeatFailed as failure:
                        faults[seat.index] = failure.fault
                    else:
                        good.add(seat.index)
                if good and first_done is None:
                    first_done = loop.time()
                if good and 2 * len(good) >= header.num_data and half_done is None:
                    half_done = loop.time()
        finally:
            await cancel(running)
        for fetch in running.values():
            if fetch.is_behind(loop.time()) or len(good) < header.num_data:
                faults[fetch.seat.index] = fetch.describe(loop.time())
        chosen = frozenset(sorted(good)[: header.num_data])
        if len(chosen) < header.num_data:
            raise NotEnoughShards(blob=blob, expected=header.num_data, got=len(chosen), faults=sort_faults(faults))
        return chosen, sort_faults(faults)

    async def find_proof(
        self, blob: BlobId, buffer: BlobBuffer, present: frozenset[int], error: InconsistentBlob
    ) -> LeafEvidence | None:
        """Read the shard that differs, and return the leaves that prove it; None when its seat does not give it."""
        assert error.evidence is not None
        shards = {index: b"".join(buffer.get_shard(index)) for index in present}
        index = error.evidence.shard
        if index not in present:
            fetch = _Fetch(seat=self.committee.seats[index], start=0.0)
            try:
                await self._fetch(blob, buffer, fetch)
                shards[index] = b"".join(buffer.get_shard(index))
            except SeatFailed as failure:
                _log.info("no proof against blob %s: %s", blob.hex(), failure)
        return await asyncio.to_thread(find_evidence, buffer.header, shards)

    async def _fetch(self, blob: BlobId, buffer: BlobBuffer, fetch: _Fetch) -> None:
        header = buffer.header
        shard_bytes = compute_shard_bytes(header.size_bytes, header.num_data)
        await self.links.fetch_shard(
            fetch.seat,
            blob,
            header,
            buffer.get_shard(fetch.seat.index),
            deadline_seconds=compute_deadline_seconds(self.deadline_seconds, shard_bytes),
            progress=fetch.progress,
        )


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
