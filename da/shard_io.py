"""Shards on their way to and from a node, whatever carries them (da/SPEC.md, *Client*)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import Protocol

from da.core.merkle import RootBuilder
from da.core.types import ShardRoot

HASH_BYTES_AT_ONCE = 1 << 20
"""Bytes that come through the event loop and are then hashed in a thread; handing over costs some 50 us."""


@dataclass(slots=True)
class Progress:
    """How far a fetch has come; the caller may look while it runs."""

    num_bytes: int = 0
    """Bytes received so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardBody:
    """The bytes of one shard, to be sent; a busy node may make it start again before anything was sent."""

    num_bytes: int
    """How many there are."""
    open_pieces: Callable[[], AsyncIterator[memoryview]]
    """Yields them in order; a piece stays valid until the one after the next is asked for."""
    can_repeat: bool = False
    """Whether they can be opened again after some were taken."""

    def call_when_opened(self, note: Callable[[], None]) -> ShardBody:
        """Return the same body, which calls ``note`` when its first piece is about to be sent."""

        def open_pieces() -> AsyncIterator[memoryview]:
            note()
            return self.open_pieces()

        return replace(self, open_pieces=open_pieces)


class ShardStream(Protocol):
    """The bytes of one shard, as they come."""

    async def read_into(self, buffer: memoryview) -> None:
        """Fill ``buffer`` with the next bytes; raises ``SeatFailed``."""
        ...

    def close(self) -> None:
        """Take no more."""
        ...


def make_body(pieces: Sequence[memoryview]) -> ShardBody:
    """Return a body of ``pieces`` in memory, which can be sent again."""

    async def open_pieces() -> AsyncIterator[memoryview]:
        for piece in pieces:
            yield piece

    return ShardBody(num_bytes=sum(len(piece) for piece in pieces), open_pieces=open_pieces, can_repeat=True)


class HashingWriter:
    """Puts chunks one behind the other into the pieces of a shard; a thread hashes them meanwhile."""

    def __init__(self, pieces: Sequence[memoryview], builder: RootBuilder, threads: Executor) -> None:
        self._pieces = pieces
        self._builder = builder
        self._threads = threads
        self._number = 0
        self._at = 0
        self._hashed = 0
        self._hashing: asyncio.Future[None] | None = None

    async def write(self, chunk: bytes) -> None:
        """Copy ``chunk``; there must be room for it."""
        view = memoryview(chunk)
        while view:
            piece = self._pieces[self._number]
            part = view[: len(piece) - self._at]
            piece[self._at : self._at + len(part)] = part
            self._at += len(part)
            view = view[len(part) :]
            is_full = self._at == len(piece)
            if is_full or self._at - self._hashed >= HASH_BYTES_AT_ONCE:
                await self._wait()
                self._hashing = asyncio.get_running_loop().run_in_executor(
                    self._threads, self._builder.update, piece[self._hashed : self._at]
                )
                self._hashed = self._at
            if is_full:
                self._number += 1
                self._at = self._hashed = 0

    async def finish(self) -> ShardRoot:
        """Return the root of the pieces that are full; no thread reads them any more."""
        await self._wait()
        return self._builder.finish()

    async def _wait(self) -> None:
        if self._hashing is None:
            return
        try:
            await asyncio.shield(self._hashing)
        except asyncio.CancelledError:
            await asyncio.wait([self._hashing])
            raise
