"""Disperse a blob to a committee, and read it back from any k honest seats (DESIGN 5; da/SPEC.md, *Client*).

Nodes are trusted with nothing: receipts are verified, every shard is checked against its root while it comes in, the
decoded blob is encoded again. Invariant: ``disperse`` returns a certificate that verifies, or raises and certifies
nothing; ``retrieve`` returns the bytes that the blob id names, or raises. Both name the seats that failed, and why.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from da.codec import EncodedBlob, decode_blob, encode_blob
from da.core.blob import BlobHeader, compute_shard_bytes
from da.core.errors import (
    BlobTooLarge,
    FaultKind,
    HeaderUnavailable,
    NotEnoughReceipts,
    NotEnoughShards,
    SeatFailed,
    SeatFault,
)
from da.core.merkle import PAYLOAD_LEAF_BYTES
from da.core.receipt import Receipt
from da.core.scheme import compute_scheme, is_small
from da.core.types import BlobId, Certificate, Committee, Height, ReceiptTerms, Seat, Tier
from da.counting import Traffic
from da.node_calls import Progress, fetch_header, fetch_shard, send_shard
from da.protocol import PutRequest

MIN_BYTES_PER_SECOND = 128 * 1024
"""A seat slower than this counts as behind; its deadline grows with the shard at this rate (1 Mbps)."""

PATIENCE_SECONDS = 1.0
"""A seat that is behind for longer gets a substitute while it goes on: about ten round trips between continents."""

GRACE_SECONDS = 0.5
"""After enough receipts, the slower seats get as long again as these took, and at least this, to have their shard.
When enough can no longer come, they get this to say what is wrong with them."""

LOOK_SECONDS = 0.2
"""How often running fetches are compared with the minimum rate."""

MAX_CONNECTIONS = 256
"""Four for each of 64 seats."""

READ_BUFFER_BYTES = 1 << 20
"""Bytes taken from a socket before the reader must catch up; k fetches hold k of these."""

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

    def __init__(self, *, deadline_seconds: float = 30.0) -> None:
        self.deadline_seconds = deadline_seconds
        """Longest wait for one seat, beside what its bytes need at the minimum rate."""
        self.traffic = Traffic()
        self._session: aiohttp.ClientSession | None = None
        self._has_warned = False

    async def __aenter__(self) -> AsyncBlobClient:
        self._get_session()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def disperse(
        self,
        data: bytes | bytearray | memoryview,
        *,
        committee: Committee,
        genesis_hash: bytes,
        tier: Tier,
        expiry: Height,
        leaf_bytes: int = PAYLOAD_LEAF_BYTES,
    ) -> Dispersal:
        """Encode ``data``, send each seat its shard, and gather receipts into a certificate.

        Raises:
            NotEnoughReceipts: fewer than s seats signed; names each of the others.
            BlobTooLarge, InvalidScheme: nothing was sent.
        """
        scheme = compute_scheme(len(committee.seats))
        self._warn_if_small(scheme.num_shards)
        encoded = await asyncio.to_thread(
            encode_blob, data, num_data=scheme.num_data, num_shards=scheme.num_shards, leaf_bytes=leaf_bytes
        )
        terms = ReceiptTerms(
            genesis_hash=genesis_hash,
            epoch=committee.epoch,
            blob=encoded.blob,
            size_bytes=encoded.header.size_bytes,
            tier=tier,
            expiry=expiry,
        )
        receipts, faults = await self._gather_receipts(encoded, terms, committee, scheme.num_signatures)
        if len(receipts) < scheme.num_signatures:
            raise NotEnoughReceipts(expected=scheme.num_signatures, got=len(receipts), faults=faults)
        signatures = tuple((receipt.seat, receipt.signature) for receipt in receipts)
        return Dispersal(certificate=Certificate(terms=terms, signatures=signatures), faults=faults)

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
        data = await asyncio.to_thread(decode_blob, header, shards)
        report = RetrieveReport(seats=tuple(sorted(shards)), faults=faults)
        return Retrieved(data=data, header=header, report=report)

    async def _gather_receipts(
        self, encoded: EncodedBlob, terms: ReceiptTerms, committee: Committee, num_needed: int
    ) -> tuple[list[Receipt], tuple[SeatFault, ...]]:
        """Return verified receipts by seat, and why the other seats have none."""
        session, loop = self._get_session(), asyncio.get_running_loop()
        deadline_seconds = self._compute_deadline(encoded.header)
        tasks: dict[asyncio.Task[Receipt], Seat] = {}
        for seat, pieces in zip(committee.seats, encoded.shards, strict=True):
            request = PutRequest(
                blob=encoded.blob,
                seat=seat.index,
                epoch=terms.epoch,
                tier=terms.tier,
                expiry=terms.expiry,
                header=encoded.header,
            )
            call = send_shard(session, seat, request, pieces, terms=terms, deadline_seconds=deadline_seconds)
            tasks[asyncio.create_task(call)] = seat
        receipts: list[Receipt] = []
        faults: dict[int, SeatFault] = {}
        start, grace_ends = loop.time(), None
        pending: set[asyncio.Task[Receipt]] = set(tasks)
        try:
            while pending:
                timeout = None if grace_ends is None else max(0.0, grace_ends - loop.time())
                done, pending = await asyncio.wait(pending, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    break
                for task in done:
                    try:
                        receipts.append(task.result())
                    except SeatFailed as failure:
                        faults[failure.fault.seat] = failure.fault
                now = loop.time()
                if grace_ends is None and len(receipts) >= num_needed:
                    grace_ends = now + max(GRACE_SECONDS, now - start)
                elif grace_ends is None and len(receipts) + len(pending) < num_needed:
                    grace_ends = now + GRACE_SECONDS
        finally:
            await _cancel(pending)
        for task in pending:
            seat = tasks[task]
            reason = f"no receipt after {loop.time() - start:.1f} s, when the outcome was clear"
            faults[seat.index] = SeatFault(seat=seat.index, url=seat.url, kind=FaultKind.TIMEOUT, reason=reason)
        return sorted(receipts, key=lambda receipt: receipt.seat), _by_seat(faults)

    async def _fetch_any_header(self, blob: BlobId, committee: Committee) -> tuple[BlobHeader, dict[int, SeatFault]]:
        """Ask seat after seat, the next when one fails or takes long; starts at a seat that the blob id picks."""
        session = self._get_session()
        first = blob[0] % max(1, len(committee.seats))
        waiting = deque(committee.seats[first:] + committee.seats[:first])
        running: set[asyncio.Task[BlobHeader]] = set()
        faults: dict[int, SeatFault] = {}
        try:
            while waiting or running:
                if waiting:
                    call = fetch_header(session, waiting.popleft(), blob, deadline_seconds=self.deadline_seconds)
                    running.add(asyncio.create_task(call))
                timeout = PATIENCE_SECONDS if waiting else None
                done, running = await asyncio.wait(running, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    try:
                        return task.result(), faults
                    except SeatFailed as failure:
                        faults[failure.fault.seat] = failure.fault
        finally:
            await _cancel(running)
        raise HeaderUnavailable(blob=blob, faults=_by_seat(faults))

    async def _fetch_any_shards(
        self, blob: BlobId, header: BlobHeader, committee: Committee, faults: dict[int, SeatFault]
    ) -> tuple[dict[int, memoryview], tuple[SeatFault, ...]]:
        """Return k verified shards: data shards first, seats that failed before last, substitutes for slow ones."""
        session, loop = self._get_session(), asyncio.get_running_loop()
        deadline_seconds = self._compute_deadline(header)
        seats = committee.seats[: header.num_shards]
        waiting = deque(sorted(seats, key=lambda seat: (seat.index in faults, seat.index)))
        running: dict[asyncio.Task[memoryview], _Fetch] = {}
        shards: dict[int, memoryview] = {}
        try:
            while len(shards) < header.num_data:
                num_behind = sum(fetch.is_behind(loop.time()) for fetch in running.values())
                num_wanted = header.num_data - len(shards) + num_behind
                while waiting and len(running) < num_wanted:
                    fetch = _Fetch(seat=waiting.popleft(), start=loop.time())
                    call = fetch_shard(
                        session,
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
        finally:
            await _cancel(running)
        for fetch in running.values():
            if fetch.is_behind(loop.time()) or len(shards) < header.num_data:
                faults[fetch.seat.index] = fetch.describe(loop.time())
        good = dict(sorted(shards.items())[: header.num_data])
        if len(good) < header.num_data:
            raise NotEnoughShards(blob=blob, expected=header.num_data, got=len(good), faults=_by_seat(faults))
        return good, _by_seat(faults)

    def _warn_if_small(self, num_seats: int) -> None:
        if is_small(num_seats) and not self._has_warned:
            self._has_warned = True
            _log.warning("a committee of %d seats survives crashes at most, no liar; use 4 or more", num_seats)

    def _compute_deadline(self, header: BlobHeader) -> float:
        shard_bytes = compute_shard_bytes(header.size_bytes, header.num_data)
        return self.deadline_seconds + shard_bytes / MIN_BYTES_PER_SECOND

    def _get_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=MAX_CONNECTIONS, socket_factory=self.traffic.make_socket_factory()
                ),
                timeout=aiohttp.ClientTimeout(total=None),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                read_bufsize=READ_BUFFER_BYTES,
            )
        return self._session


@dataclass(slots=True, kw_only=True)
class _Fetch:
    """One running fetch."""

    seat: Seat
    """Whom it asks."""
    start: float
    """Loop time, in seconds."""
    progress: Progress = field(default_factory=Progress)
    """How far it has come."""

    def is_behind(self, now: float) -> bool:
        """Tell whether it is slower than the minimum rate, after the patience."""
        return self.progress.num_bytes < (now - self.start - PATIENCE_SECONDS) * MIN_BYTES_PER_SECOND

    def describe(self, now: float) -> SeatFault:
        """Return the fault of a fetch that was not waited for."""
        reason = f"{self.progress.num_bytes} bytes in {now - self.start:.1f} s, not waited for"
        return SeatFault(seat=self.seat.index, url=self.seat.url, kind=FaultKind.TIMEOUT, reason=reason)


async def _cancel(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel ``tasks`` and wait until they have closed their connections; their outcomes no longer matter."""
    still = list(tasks)
    for task in still:
        task.cancel()
    await asyncio.gather(*still, return_exceptions=True)


def _by_seat(faults: dict[int, SeatFault]) -> tuple[SeatFault, ...]:
    return tuple(fault for _, fault in sorted(faults.items()))
