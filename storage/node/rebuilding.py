"""Rebuild one shard from any k others, in constant memory (DESIGN 6; SPEC.md 11).

Every byte of a shard is the same combination of the bytes at its place in any k others. Sources are read side by side
and hashed while they pass; one that fails or lies is named and left out, and the rebuild starts again with another.
Invariant: what is committed hashes to its root in the blob's header.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable
from concurrent.futures import Executor
from dataclasses import dataclass, field

from da.core.blob import BlobHeader, compute_shard_bytes
from da.core.errors import FaultKind, SeatFailed, SeatFault
from da.core.matrix import compute_recovery_rows
from da.core.merkle import RootBuilder
from da.core.types import BlobId, Committee, Seat, ShardIndex
from da.kernel import get_kernel
from da.links import SeatLinks
from da.shard_io import ShardStream
from storage.core.errors import RebuildFailed
from storage.node.engine import StoreEngine
from storage.node.pacing import Pacer
from storage.node.threads import run_in
from storage.node.upload import ShardOffer

BLOCK_BYTES = 1 << 20
"""Read of each source at once: a rebuild holds k + 1 of these."""


@dataclass(slots=True, kw_only=True)
class Rebuild:
    """What came of one rebuild."""

    bytes_read: int = 0
    """From other seats, tries that failed included."""
    bytes_rebuilt: int = 0
    faults: list[SeatFault] = field(default_factory=list)
    """Seats that failed or lied, in order."""


async def rebuild_shard(
    engine: StoreEngine,
    links: SeatLinks,
    offer: ShardOffer,
    committee: Committee,
    *,
    pacer: Pacer,
    executor: Executor,
    deadline_seconds: float,
    asked_last: Collection[ShardIndex] = (),
) -> Rebuild:
    """Rebuild ``offer``'s shard from the committee's other seats and keep it; ``asked_last`` failed lately.

    Raises: RebuildFailed when fewer than k others are good; QuotaExceeded, DiskFull, IndexFull, ShelfUnavailable.
    """
    header = offer.header
    candidates = [seat for seat in committee.seats[: header.num_shards] if seat.index != offer.shard]
    candidates.sort(key=lambda seat: seat.index in asked_last)
    outcome = Rebuild()
    while len(candidates) >= header.num_data:
        with engine.upload(offer, is_repair=True) as upload:
            chosen = candidates[: header.num_data]
            bad = await _combine(links, offer, chosen, upload.write, outcome, pacer, executor, deadline_seconds)
            if not bad:
                await run_in(executor, engine.commit, upload)
                outcome.bytes_rebuilt = offer.shard_bytes
                return outcome
        outcome.faults += bad
        gone = {fault.seat for fault in bad}
        candidates = [seat for seat in candidates if seat.index not in gone]
    raise RebuildFailed(
        blob=offer.blob, shard=offer.shard, expected=header.num_data, got=len(candidates), faults=outcome.faults
    )


async def _combine(
    links: SeatLinks,
    offer: ShardOffer,
    chosen: list[Seat],
    write: Callable[[bytearray], None],
    outcome: Rebuild,
    pacer: Pacer,
    executor: Executor,
    deadline_seconds: float,
) -> list[SeatFault]:
    """Write the combination of the chosen seats' shards; return who failed instead of raising."""
    header, num_bytes = offer.header, offer.shard_bytes
    row = compute_recovery_rows(
        header.num_data, header.num_shards, tuple(seat.index for seat in chosen), (int(offer.shard),)
    )
    sources = [_Source(seat, header) for seat in chosen]
    try:
        bad = await _gather_faults(source.open(links, offer.blob, num_bytes, deadline_seconds) for source in sources)
        kernel, at = get_kernel(), 0
        while at < num_bytes and not bad:
            size = min(BLOCK_BYTES, num_bytes - at)
            await pacer.wait(size * len(sources))
            bad = await _gather_faults(source.read(size) for source in sources)
            outcome.bytes_read += size * len(sources)
            if not bad:
                block = bytearray(size)

                def combine(size: int = size, block: bytearray = block) -> None:
                    kernel.multiply(row, [source.buffer[:size] for source in sources], [memoryview(block)])
                    write(block)

                await run_in(executor, combine)
                at += size
        return bad or [fault for source in sources if (fault := source.judge()) is not None]
    finally:
        for source in sources:
            source.close()


class _Source:
    """One seat's shard on its way in."""

    def __init__(self, seat: Seat, header: BlobHeader) -> None:
        self._seat = seat
        self._expected = header.shard_roots[seat.index]
        self._root = RootBuilder(leaf_bytes=header.leaf_bytes)
        self._stream: ShardStream | None = None
        self.buffer = memoryview(bytearray(min(BLOCK_BYTES, compute_shard_bytes(header.size_bytes, header.num_data))))

    async def open(self, links: SeatLinks, blob: BlobId, num_bytes: int, deadline_seconds: float) -> None:
        if num_bytes:
            self._stream = await links.open_stream(
                self._seat, blob, start=0, num_bytes=num_bytes, deadline_seconds=deadline_seconds
            )

    async def read(self, size: int) -> None:
        assert self._stream is not None
        await self._stream.read_into(self.buffer[:size])
        self._root.update(self.buffer[:size])

    def judge(self) -> SeatFault | None:
        got = self._root.finish()
        if got == self._expected:
            return None
        reason = f"bytes hash to root {got.hex()}, expected {self._expected.hex()}"
        return SeatFault(seat=self._seat.index, url=self._seat.url, kind=FaultKind.BAD_SHARD, reason=reason)

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()


async def _gather_faults(calls: Iterable[Awaitable[None]]) -> list[SeatFault]:
    results = await asyncio.gather(*calls, return_exceptions=True)
    faults = []
    for result in results:
        if isinstance(result, SeatFailed):
            faults.append(result.fault)
        elif isinstance(result, BaseException):
            raise result
    return faults
