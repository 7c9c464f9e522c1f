"""Shards on their way to and from a node, whatever carries them (da/SPEC.md, *Client*)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol


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


class ShardStream(Protocol):
    """The bytes of one shard, as they come."""

    async def read_into(self, buffer: memoryview) -> None:
        """Fill ``buffer`` with the next bytes; raises ``SeatFailed``."""
        ...

    def close(self) -> None:
        """Take no more."""
        ...


def make_body(pieces: Sequence[memoryview]) -> ShardBody:
    """Return a body of ``pieces`` in memory."""

    async def open_pieces() -> AsyncIterator[memoryview]:
        for piece in pieces:
            yield piece

    return ShardBody(num_bytes=sum(len(piece) for piece in pieces), open_pieces=open_pieces)
