"""Waiting for receipts: for enough of them, and a little longer for the rest (da/SPEC.md, *Client*).

Invariant: every seat ends with a receipt or with a fault that says why it has none.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from da.core.errors import FaultKind, SeatFailed, SeatFault
from da.core.receipt import Receipt
from da.core.types import Seat

GRACE_SECONDS = 0.5
"""After enough receipts, the slower seats get as long again as these took, and at least this, to have their shard.
When enough can no longer come, they get this to say what is wrong with them."""

T = TypeVar("T")

Gathered = tuple[dict[int, Receipt], tuple[SeatFault, ...]]
"""Receipts by seat, and why the other seats have none."""

_log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Gathering(Generic[T]):
    """Runs one call a seat until the outcome is clear."""

    num_needed: int
    """So many good answers are enough."""
    _tasks: dict[asyncio.Task[T], Seat] = field(default_factory=dict)

    def start(self, seat: Seat, call: Coroutine[Any, Any, T]) -> None:
        """Start a seat's call."""
        self._tasks[asyncio.create_task(call)] = seat

    def drop(self, seat_index: int) -> None:
        """Stop waiting for a seat."""
        for task, seat in self._tasks.items():
            if seat.index == seat_index:
                task.cancel()

    async def run(self) -> tuple[dict[int, T], tuple[SeatFault, ...]]:
        """Return the good answers by seat, and why the other seats have none."""
        loop = asyncio.get_running_loop()
        answers: dict[int, T] = {}
        faults: dict[int, SeatFault] = {}
        start, grace_ends = loop.time(), None
        pending: set[asyncio.Task[T]] = set(self._tasks)
        try:
            while pending:
                timeout = None if grace_ends is None else max(0.0, grace_ends - loop.time())
                done, pending = await asyncio.wait(pending, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    break
                for task in done:
                    seat = self._tasks[task]
                    if task.cancelled():
                        faults[seat.index] = _describe(
                            seat, "it was left behind, others had enough", loop.time() - start
                        )
                        continue
                    try:
                        answers[seat.index] = task.result()
                    except SeatFailed as failure:
                        faults[seat.index] = failure.fault
                now = loop.time()
                if grace_ends is None and len(answers) >= self.num_needed:
                    grace_ends = now + max(GRACE_SECONDS, now - start)
                elif grace_ends is None and len(answers) + len(pending) < self.num_needed:
                    grace_ends = now + GRACE_SECONDS
        finally:
            await cancel(pending)
        for task in pending:
            seat = self._tasks[task]
            faults[seat.index] = _describe(seat, "no receipt when the outcome was clear", loop.time() - start)
        return dict(sorted(answers.items())), sort_faults(faults)


async def gather_receipts(
    seats: Sequence[Seat], num_needed: int, send_to: Callable[[Sequence[Seat], int, set[int]], Awaitable[Gathered]]
) -> tuple[dict[int, Receipt], tuple[SeatFault, ...], bool]:
    """Send to all ``seats`` and gather receipts; say also whether all was well at once.

    ``send_to`` is given seats, how many receipts are enough, and a set for those whose bytes began to travel. Where a
    quorum is missing and connections broke while bytes travelled, those without a receipt are sent theirs once more.
    That is what a person would do, and it costs only the shards that are not kept yet.
    """
    begun: set[int] = set()
    receipts, faults = await send_to(seats, num_needed, begun)
    is_clean = not faults
    has_broken = any(fault.kind is FaultKind.UNREACHABLE and fault.seat in begun for fault in faults)
    if len(receipts) < num_needed and has_broken:
        _log.info("%d of %d receipts, and connections broke: the others once more", len(receipts), num_needed)
        left = [seat for seat in seats if seat.index not in receipts]
        more, faults = await send_to(left, num_needed - len(receipts), begun)
        receipts = dict(sorted({**receipts, **more}.items()))
    return receipts, faults, is_clean


def sort_faults(faults: dict[int, SeatFault]) -> tuple[SeatFault, ...]:
    """Return faults by seat."""
    return tuple(fault for _, fault in sorted(faults.items()))


async def cancel(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel ``tasks`` and wait until they have closed their connections; their outcomes no longer matter."""
    still = list(tasks)
    for task in still:
        task.cancel()
    await asyncio.gather(*still, return_exceptions=True)


def _describe(seat: Seat, what: str, seconds: float) -> SeatFault:
    return SeatFault(seat=seat.index, url=seat.url, kind=FaultKind.TIMEOUT, reason=f"{what}, after {seconds:.1f} s")
