"""The node's view of the chain: height and the committees it may sign for.

The last answer stays while the chain is down, so a node goes on signing for the committee that it knows.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import Executor
from dataclasses import dataclass

from da.core.types import Committee, Epoch, Height, ShardIndex
from storage.core.errors import ChainNotKnown, ChainUnreachable, NotMySeat, WrongEpoch
from storage.node.chain_port import ChainPort

log = logging.getLogger(__name__)

REFRESH_SECONDS = 0.2
"""An epoch that is just beginning makes the node ask at once, at most this often."""

EPOCH_SECONDS = 2.0
"""How long a request for the next epoch is held: the client may have seen a block that we have not."""


EPOCHS_AHEAD = 4
"""Epochs that may have begun since the chain was asked last; a request for a later one is refused at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainView:
    """What the chain said last."""

    genesis_hash: bytes
    height: Height
    committees: tuple[Committee, ...]
    """The current one, then the one before."""


class ChainWatch:
    """Asks the chain again and again; lives in one event loop."""

    def __init__(self, chain: ChainPort, executor: Executor, *, poll_seconds: float) -> None:
        """Ask ``chain`` in ``executor``'s threads."""
        self._chain = chain
        self._executor = executor
        self._poll_seconds = poll_seconds
        self._lock = asyncio.Lock()
        self._asked_at = float("-inf")
        self.view: ChainView | None = None
        self.is_reachable = False
        self.advanced = asyncio.Condition()
        """Notified when the height has grown."""

    async def refresh(self) -> None:
        """Ask now; concurrent callers share one question.

        Raises: ChainUnreachable; the view stays as it was.
        """
        loop = asyncio.get_running_loop()
        called_at = loop.time()
        async with self._lock:
            if self._asked_at >= called_at:
                return
            self._asked_at = loop.time()
            try:
                view = await loop.run_in_executor(self._executor, self._fetch)
            except ChainUnreachable as error:
                if self.is_reachable or self.view is None:
                    log.warning("%s", error)
                self.is_reachable = False
                raise
            if not self.is_reachable:
                log.info("chain reached at height %d, epoch %s", view.height, _get_epochs(view))
            self.is_reachable = True
            has_grown = self.view is None or view.height > self.view.height
            if self.view is None or view.height >= self.view.height:
                self.view = view
            async with self.advanced:
                if has_grown:
                    self.advanced.notify_all()

    async def run(self) -> None:
        """Ask for ever; ends when cancelled."""
        while True:
            try:
                await self.refresh()
            except ChainUnreachable:
                log.debug("chain not reached; asked again in %.1f s", self._poll_seconds)
            await asyncio.sleep(self._poll_seconds)

    def find_committee(self, epoch: Epoch) -> tuple[ChainView, Committee] | None:
        """Return the same without asking, None where the epoch is not known; any thread may call it."""
        view = self.view
        if view is None:
            return None
        return next(((view, committee) for committee in view.committees if committee.epoch == epoch), None)

    async def get_committee(self, epoch: Epoch) -> tuple[ChainView, Committee]:
        """Return the view and its committee of ``epoch``, asking again where the epoch may have just begun.

        Raises: ChainNotKnown, WrongEpoch.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + EPOCH_SECONDS
        found = self.find_committee(epoch)
        while found is None and self._is_next(epoch) and loop.time() < deadline:
            await asyncio.sleep(max(0.0, self._asked_at + REFRESH_SECONDS - loop.time()))
            try:
                await self.refresh()
            except ChainUnreachable as error:
                log.info("epoch %d is unknown and %s", epoch, error)
                break
            found = self.find_committee(epoch)
        if found is not None:
            return found
        if self.view is None:
            raise ChainNotKnown
        raise WrongEpoch(got=epoch, accepted=tuple(_get_epochs(self.view)))

    def _is_next(self, epoch: Epoch) -> bool:
        """Tell whether an epoch may have begun since the chain was asked last."""
        if self.view is None:
            return True
        newest = max((committee.epoch for committee in self.view.committees), default=0)
        return newest < epoch <= newest + EPOCHS_AHEAD

    def _fetch(self) -> ChainView:
        # The committees come first: a view never claims a height at which its committees were not yet known.
        committees = self._chain.get_committees()
        return ChainView(
            genesis_hash=self._chain.get_genesis_hash(), height=self._chain.get_height(), committees=committees
        )


def get_my_seats(committee: Committee, key: bytes) -> tuple[ShardIndex, ...]:
    """Return the seats of a committee that belong to a receipt key."""
    return tuple(seat.index for seat in committee.seats if seat.key == key)


def check_seat(committee: Committee, shard: ShardIndex, key: bytes) -> None:
    """Check that a shard's seat belongs to a receipt key.

    Raises: NotMySeat.
    """
    seats = get_my_seats(committee, key)
    if shard not in seats:
        raise NotMySeat(epoch=committee.epoch, seat=shard, seats=seats)


def _get_epochs(view: ChainView) -> list[Epoch]:
    return [committee.epoch for committee in view.committees]
