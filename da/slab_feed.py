"""Shards of a large blob on their way out: coded once, handed to all seats, a few slabs in memory.

The fastest seats are held back by the window; a seat that holds back a whole quorum is left behind. Invariant: a
buffer is used again only when no seat can still be sending from it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field

from da.codec import ShardHasher
from da.core.blob import BlobHeader, needs_folds
from da.core.matrix import compute_parity_rows
from da.core.types import Scheme
from da.folding import FoldBuilder, make_seed
from da.kernel import get_kernel
from da.memory import BufferPool
from da.slabs import Slab, Source, iterate_slabs, read_slab

WINDOW_SLABS = 4
"""Slabs in memory: one is made, one is sent, one may still leave the socket's buffer, one for who is ahead."""

LAG_SECONDS = 0.5
"""A quorum waits for a slower seat's slab as long again as it needed itself, and at least this."""


def compute_stream_header(
    source: Source, scheme: Scheme, *, leaf_bytes: int, pool: BufferPool, executor: Executor | None = None
) -> BlobHeader:
    """Read ``source`` twice, for the roots and for the folds, and return the blob's header."""
    num_data, num_shards = scheme.num_data, scheme.num_shards
    hasher = ShardHasher(num_data=num_data, num_shards=num_shards, leaf_bytes=leaf_bytes)
    for slab in iterate_slabs(source.size_bytes, num_data=num_data, num_shards=num_shards):
        buffers = [pool.take(slab.num_bytes) for _ in range(num_shards)]
        read_slab(source, slab, buffers[:num_data])
        hasher.update(buffers[:num_data], buffers[num_data:], executor=executor)
        pool.give_back(*buffers)
    header = hasher.finish(size_bytes=source.size_bytes)
    if not needs_folds(source.size_bytes, num_data, num_shards):
        return header
    seed = make_seed(header)
    builders = [FoldBuilder(seed) for _ in range(num_data)]
    run = map if executor is None else executor.map
    for slab in iterate_slabs(source.size_bytes, num_data=num_data, num_shards=num_shards):
        buffers = [pool.take(slab.num_bytes) for _ in range(num_data)]
        read_slab(source, slab, buffers)
        for _ in run(FoldBuilder.update, builders, buffers):
            pass
        pool.give_back(*buffers)
    return header.with_folds(tuple(builder.finish() for builder in builders))


@dataclass(slots=True)
class _Ready:
    """A coded slab and the seats that may still read it."""

    buffers: list[memoryview]
    readers: set[int]
    started: float
    """Loop time when it could first be sent."""


@dataclass(slots=True, kw_only=True)
class SlabFeed:
    """Gives each seat its shard, slab by slab; ``run`` must be running meanwhile."""

    source: Source
    header: BlobHeader
    seats: frozenset[int]
    """Those that get their shard."""
    num_needed: int
    """So many of them wait for no slower one."""
    pool: BufferPool
    executor: Executor | None = None
    drop: Callable[[int], None] = lambda _: None
    """Called with a seat that is left behind."""
    _active: set[int] = field(default_factory=set)
    _ready: dict[int, _Ready] = field(default_factory=dict)
    _num_coded: int = 0
    _change: asyncio.Condition = field(default_factory=asyncio.Condition)

    def __post_init__(self) -> None:
        self._active = set(self.seats)

    async def run(self) -> None:
        """Read, code and publish slabs until all are sent or nobody is left."""
        loop = asyncio.get_running_loop()
        slabs = iterate_slabs(self.header.size_bytes, num_data=self.header.num_data, num_shards=self.header.num_shards)
        for number, slab in enumerate(slabs):
            await self._wait_for_room(number)
            if not self._active:
                return
            buffers = await loop.run_in_executor(self.executor, self._code, slab)
            async with self._change:
                self._ready[number] = _Ready(buffers, set(self._active), loop.time())
                self._num_coded = number + 1
                self._change.notify_all()
        while self._ready:
            await self._wait_for_room(min(self._ready) + WINDOW_SLABS)

    async def iterate(self, seat: int) -> AsyncIterator[memoryview]:
        """Yield the pieces of the seat's shard; a piece stays valid until the one after the next is asked for.

        Raises:
            ConnectionResetError: it is opened again, as an HTTP library does by itself, when its first slabs are gone.
        """
        slabs = iterate_slabs(self.header.size_bytes, num_data=self.header.num_data, num_shards=self.header.num_shards)
        for number, _ in enumerate(slabs):
            async with self._change:
                await self._change.wait_for(lambda at=number: at < self._num_coded)  # type: ignore[misc]
                ready = self._ready.get(number)
                if ready is None or seat not in ready.readers:  # waiting for it would hold back everybody
                    raise ConnectionResetError(f"slab {number} has been sent and is gone")
                piece = ready.buffers[seat]
            yield piece
            if number:
                await self._release(number - 1, seat)
        await self.leave(seat)

    async def leave(self, seat: int) -> None:
        """The seat needs nothing more: it has everything, or has failed."""
        async with self._change:
            self._active.discard(seat)
            for number in list(self._ready):
                self._let_go(number, seat)
            self._change.notify_all()

    async def _release(self, number: int, seat: int) -> None:
        async with self._change:
            self._let_go(number, seat)
            self._change.notify_all()

    def _let_go(self, number: int, seat: int) -> None:
        ready = self._ready.get(number)
        if ready is None:
            return
        ready.readers.discard(seat)
        if not ready.readers:
            self.pool.give_back(*ready.buffers)
            del self._ready[number]

    async def _wait_for_room(self, number: int) -> None:
        """Wait until slab ``number`` fits the window; leave behind who keeps a quorum waiting."""
        loop = asyncio.get_running_loop()
        oldest = number - WINDOW_SLABS
        quorum_since: float | None = None
        while (ready := self._ready.get(oldest)) is not None:
            done = len(self.seats) - len(ready.readers)
            if done >= self.num_needed and quorum_since is None:
                quorum_since = loop.time()
            timeout = None
            if quorum_since is not None:
                allowed = max(LAG_SECONDS, quorum_since - ready.started)
                timeout = quorum_since + allowed - loop.time()
                if timeout <= 0:
                    for seat in sorted(ready.readers):
                        self.drop(seat)
                        await self.leave(seat)
                    continue
            async with self._change:
                if self._ready.get(oldest) is not ready or len(self.seats) - len(ready.readers) != done:
                    continue
                try:
                    async with asyncio.timeout(timeout):
                        await self._change.wait()
                except TimeoutError:
                    continue

    def _code(self, slab: Slab) -> list[memoryview]:
        num_data = self.header.num_data
        buffers = [self.pool.take(slab.num_bytes) for _ in range(self.header.num_shards)]
        read_slab(self.source, slab, buffers[:num_data])
        rows = compute_parity_rows(num_data, self.header.num_shards)
        get_kernel().multiply(rows, buffers[:num_data], buffers[num_data:])
        return buffers
