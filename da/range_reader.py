"""Reads some bytes of a blob without the rest: the leaves that hold them, each checked by its Merkle path.

The data shard that holds the bytes is asked first; where its seat fails or is slow, the same leaves of k others give
them back (da/SPEC.md, *Ranges*). Invariant: no byte is returned that does not lead to its shard's root. That the shards
are one code word was checked by the nodes that signed, by the folds in the header; blobs without folds are read whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import aiohttp

from da.auditing import fetch_answer
from da.core.blob import BlobHeader, compute_shard_bytes
from da.core.errors import BadProof, FaultKind, MalformedMessage, NotEnoughShards, SeatFailed, SeatFault
from da.core.leaf_ranges import MAX_RANGE_BYTES, decode_range_answer, verify_range
from da.core.matrix import compute_recovery_rows
from da.core.piece_spans import PieceSpan, plan_spans
from da.core.types import BlobId, Committee, Seat, ShardIndex
from da.gathering import cancel, sort_faults
from da.hedging import MIN_BYTES_PER_SECOND, PATIENCE_SECONDS
from da.kernel import get_kernel
from da.protocol import shard_path

LEAVES_SUFFIX = "/leaves"
"""GET below a shard's path, with ?first=&count=: neighbouring leaves with one path."""

MAX_ANSWER_BYTES = MAX_RANGE_BYTES + (1 << 20)
"""Leaves, at least one of 1 MiB, and their path."""

MAX_PARALLEL = 8
"""Requests under way for one reader."""

AVOID_SECONDS = 30.0
"""A seat that failed is not asked first for so long."""

T = TypeVar("T")


def can_read_ranges(header: BlobHeader) -> bool:
    """Tell whether the encoding was checked before anybody signed, so that leaves alone say what the blob is."""
    return bool(header.folds) or header.num_data == header.num_shards


class RangeReader:
    """One blob, open for reading; of one event loop."""

    def __init__(
        self,
        get_session: Callable[[], aiohttp.ClientSession],
        blob: BlobId,
        header: BlobHeader,
        committee: Committee,
        *,
        deadline_seconds: float,
    ) -> None:
        """Read ``blob`` from the seats of ``committee``; ``header`` is the one that the id names."""
        self.header = header
        self.blob = blob
        self.faults: dict[int, SeatFault] = {}
        """Seats that failed, by index, and how they did last."""
        self._get_session = get_session
        self._seats = committee.seats[: header.num_shards]
        self._deadline_seconds = deadline_seconds
        self._shard_bytes = compute_shard_bytes(header.size_bytes, header.num_data)
        self._avoided: dict[int, float] = {}
        self._slots = asyncio.Semaphore(MAX_PARALLEL)

    async def read(self, start: int, stop: int) -> bytes:
        """Return bytes [start, stop) of the blob, as far as it goes.

        Raises:
            NotEnoughShards: fewer than k seats gave the leaves; names each.
        """
        header = self.header
        start, stop = max(0, start), min(stop, header.size_bytes)
        if start >= stop:
            return b""
        spans = plan_spans(header.size_bytes, header.num_data, start=start, stop=stop)
        parts = await _gather(*(self._read_span(span) for span in spans))
        return b"".join(parts)

    async def _read_span(self, span: PieceSpan) -> bytes:
        leaf = self.header.leaf_bytes
        first, stop = span.shard_start // leaf, -(-span.shard_stop // leaf)
        step = max(1, MAX_RANGE_BYTES // leaf)
        parts = await _gather(
            *(self._read_leaves(span.shard, at, min(at + step, stop)) for at in range(first, stop, step))
        )
        skip = span.shard_start - first * leaf
        return b"".join(parts)[skip : skip + span.shard_stop - span.shard_start]

    async def _read_leaves(self, shard: ShardIndex, first: int, stop: int) -> bytes:
        """Return leaves [first, stop) of a data shard: its own, or given back by others when it is late or fails."""
        loop = asyncio.get_running_loop()
        if self._is_avoided(shard):
            return await self._recover(shard, first, stop)
        running: set[asyncio.Task[bytes]] = {asyncio.create_task(self._fetch(self._seats[shard], first, stop))}
        num_bytes = (stop - first) * self.header.leaf_bytes
        hedge_at, is_hedged = loop.time() + PATIENCE_SECONDS + num_bytes / MIN_BYTES_PER_SECOND, False
        failure: NotEnoughShards | None = None
        try:
            while True:
                timeout = None if is_hedged else max(0.0, hedge_at - loop.time())
                done, running = await asyncio.wait(running, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    try:
                        return task.result()
                    except SeatFailed:
                        continue
                    except NotEnoughShards as error:
                        failure = error
                if failure is not None and not running:
                    raise failure
                if not is_hedged:
                    is_hedged = True
                    running.add(asyncio.create_task(self._recover(shard, first, stop)))
        finally:
            await cancel(running)

    async def _recover(self, shard: ShardIndex, first: int, stop: int) -> bytes:
        """Return the same leaves as any k other seats give them."""
        waiting = sorted(
            (seat for seat in self._seats if seat.index != shard), key=lambda seat: self._is_avoided(seat.index)
        )
        if self._is_avoided(shard):
            waiting.append(self._seats[shard])
        num_data, found = self.header.num_data, dict[int, bytes]()
        while len(found) < num_data and len(waiting) >= num_data - len(found):
            asked, waiting = waiting[: num_data - len(found)], waiting[num_data - len(found) :]
            results = await asyncio.gather(*(self._fetch(seat, first, stop) for seat in asked), return_exceptions=True)
            for seat, result in zip(asked, results, strict=True):
                if isinstance(result, bytes):
                    found[seat.index] = result
                elif not isinstance(result, SeatFailed):
                    raise result
        if len(found) < num_data:
            raise NotEnoughShards(blob=self.blob, expected=num_data, got=len(found), faults=sort_faults(self.faults))
        if shard in found:
            return found[shard]
        return await asyncio.to_thread(self._combine, shard, found)

    def _combine(self, shard: ShardIndex, found: dict[int, bytes]) -> bytes:
        chosen = tuple(sorted(found))
        rows = compute_recovery_rows(self.header.num_data, self.header.num_shards, chosen, (int(shard),))
        out = bytearray(len(found[chosen[0]]))
        get_kernel().multiply(rows, [found[index] for index in chosen], [memoryview(out)])
        return bytes(out)

    async def _fetch(self, seat: Seat, first: int, stop: int) -> bytes:
        """Return leaves [first, stop) of a seat's shard, verified; raises ``SeatFailed``, and remembers it."""
        header = self.header
        path = f"{shard_path(self.blob, seat.index)}{LEAVES_SUFFIX}?first={first}&count={stop - first}"
        deadline = self._deadline_seconds + (stop - first) * header.leaf_bytes / MIN_BYTES_PER_SECOND
        try:
            async with self._slots:
                answer = await fetch_answer(self._get_session(), seat, path, deadline, max_bytes=MAX_ANSWER_BYTES)
            try:
                siblings, leaves = decode_range_answer(answer)
                expected = min(stop * header.leaf_bytes, self._shard_bytes) - first * header.leaf_bytes
                if len(leaves) != expected:
                    raise BadProof(f"{len(leaves)} bytes of leaves, expected {expected}")
                verify_range(
                    header.shard_roots[seat.index],
                    leaves,
                    siblings,
                    first=first,
                    size_bytes=self._shard_bytes,
                    leaf_bytes=header.leaf_bytes,
                )
            except (MalformedMessage, BadProof) as error:
                reason = f"leaves {first} to {stop}: {error}"
                fault = SeatFault(seat=seat.index, url=seat.url, kind=FaultKind.BAD_SHARD, reason=reason)
                raise SeatFailed(fault) from error
        except SeatFailed as failure:
            self.faults[seat.index] = failure.fault
            self._avoided[seat.index] = asyncio.get_running_loop().time() + AVOID_SECONDS
            raise
        return bytes(leaves)

    def _is_avoided(self, seat: int) -> bool:
        return self._avoided.get(seat, 0.0) > asyncio.get_running_loop().time()


async def _gather(*calls: Coroutine[Any, Any, T]) -> list[T]:
    """Return all results; the first failure ends the rest."""
    tasks = [asyncio.create_task(call) for call in calls]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        await cancel(tasks)
