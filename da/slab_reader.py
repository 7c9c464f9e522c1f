"""Reading a large blob into a file, a few slabs in memory, past dead, slow and lying seats.

First k streams are read abreast; one that lags or breaks is replaced where it stands, and all n roots are computed
from what was decoded. Where they are the header's, nothing more needs to be known. Where not, somebody lied, and the
blob is read again *strictly*: k whole shards, each checked against its root, liars left out, until k good ones
remain. Invariant: the verdict is that of ``decode_blob``, and nothing is left under the final name before it.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from da.codec import RootCheck
from da.core.blob import BlobHeader, compute_shard_bytes
from da.core.errors import FaultKind, InconsistentBlob, NotEnoughShards, SeatFailed, SeatFault
from da.core.matrix import compute_recovery_rows
from da.core.merkle import RootBuilder
from da.core.types import BlobId, Committee, Seat
from da.gathering import cancel, sort_faults
from da.hedging import compute_hedge_time
from da.kernel import get_kernel
from da.landing import open_part
from da.links import SeatLinks
from da.memory import BufferPool
from da.shard_io import ShardStream
from da.slabs import Slab, iterate_slabs


@dataclass(slots=True, kw_only=True)
class _Feed:
    """One seat's stream, opened where it is first needed."""

    seat: Seat
    stream: ShardStream | None = None
    root: RootBuilder | None = None
    """In a strict reading."""


@dataclass(slots=True, kw_only=True)
class SlabReader:
    """Reads one blob into a file."""

    links: SeatLinks
    blob: BlobId
    header: BlobHeader
    committee: Committee
    deadline_seconds: float
    """For one slab of one seat."""
    pool: BufferPool
    on_progress: Callable[[int], None] = lambda _: None
    """Called with the number of blob bytes read so far."""
    faults: dict[int, SeatFault] = field(default_factory=dict)
    """Seats of no use, and why."""
    used: set[int] = field(default_factory=set)
    """Seats whose bytes were used."""
    excluded: set[int] = field(default_factory=set)
    """Seats that a strict reading has found to be bad, and asks no more."""

    async def read(self, path: Path) -> None:
        """Write the blob to ``path``, verified; nothing appears there before.

        Raises:
            NotEnoughShards, InconsistentBlob: as for a blob in memory.
            NotAFile, OSError: ``path`` is none, or can't be written.
        """
        fd, part = open_part(path)
        try:
            await self._read_verified(fd)
            await asyncio.to_thread(os.fsync, fd)
            os.replace(part, path)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO):
                error.filename = error.filename or str(path)  # a write knows only the number of its descriptor
            raise
        finally:
            os.close(fd)
            part.unlink(missing_ok=True)

    async def _read_verified(self, fd: int) -> None:
        try:
            await self._read_once(fd, is_strict=False)
        except InconsistentBlob:
            self.used.clear()
        else:
            return
        while True:
            if await self._read_once(fd, is_strict=True):
                return
            self.used.clear()

    async def _read_once(self, fd: int, *, is_strict: bool) -> bool:
        """Read all slabs; False when a strict reading has found another bad seat.

        Raises:
            InconsistentBlob: the roots differ; final only when the reading was strict.
        """
        header, streams = self.header, _Streams(self, is_strict)
        check: RootCheck | None = None
        num_bytes = 0
        try:
            for slab in iterate_slabs(header.size_bytes, num_data=header.num_data, num_shards=header.num_shards):
                pieces = await streams.read_slab(slab)
                if pieces is None:
                    return False
                if check is None:
                    check = RootCheck(header, frozenset(pieces) if is_strict else frozenset())
                made = await asyncio.to_thread(self._finish_slab, slab, pieces, check, fd)
                self.pool.give_back(*made)
                self.used.update(pieces)
                num_bytes += sum(slab.get_blob_range(index)[1] for index in range(header.num_data))
                self.on_progress(num_bytes)
        finally:
            streams.close()
        if is_strict and not streams.check_roots():
            return False
        (check or RootCheck(header, frozenset())).finish()
        return True

    def _finish_slab(self, slab: Slab, pieces: dict[int, memoryview], check: RootCheck, fd: int) -> list[memoryview]:
        """Decode, hash and write one slab; returns its buffers."""
        header = self.header
        present = tuple(sorted(pieces))
        missing = tuple(index for index in range(header.num_data) if index not in pieces)
        made = {index: self.pool.take(slab.num_bytes) for index in missing}
        rows = compute_recovery_rows(header.num_data, header.num_shards, present, missing)
        get_kernel().multiply(rows, [pieces[i] for i in present], [made[i] for i in missing])
        data = [made[i] if i in made else pieces[i] for i in range(header.num_data)]
        used_bytes = [slab.get_blob_range(i)[1] for i in range(header.num_data)]
        check.update_block(data, used_bytes)
        for index, piece in enumerate(data):
            start, num_bytes = slab.get_blob_range(index)
            view = piece[:num_bytes]
            while view:
                written = os.pwrite(fd, view, start)
                view, start = view[written:], start + written
        return [*pieces.values(), *made.values()]


class _Streams:
    """k streams abreast; substitutes for those that fail or lag."""

    def __init__(self, reader: SlabReader, is_strict: bool) -> None:
        self._reader = reader
        self._is_strict = is_strict
        self._shard_bytes = compute_shard_bytes(reader.header.size_bytes, reader.header.num_data)
        seats = reader.committee.seats[: reader.header.num_shards]
        self._waiting = sorted(
            (seat for seat in seats if seat.index not in reader.excluded),
            key=lambda seat: (seat.index in reader.faults, seat.index),
        )
        self._feeds: list[_Feed] = []
        self._started = False

    async def read_slab(self, slab: Slab) -> dict[int, memoryview] | None:
        """Return k pieces by seat; None when a strict reading must start again.

        Raises:
            NotEnoughShards: fewer than k seats are left.
        """
        reader, loop = self._reader, asyncio.get_running_loop()
        num_needed = reader.header.num_data
        running: dict[asyncio.Task[memoryview], _Feed] = {}
        pieces: dict[int, memoryview] = {}
        start = loop.time()
        first_done: float | None = None
        half_done: float | None = None
        num_hedges = 0

        def launch(feed: _Feed) -> None:
            running[asyncio.create_task(self._read_piece(feed, slab))] = feed

        for feed in self._feeds:
            launch(feed)
        try:
            while len(pieces) < num_needed:
                while len(running) + len(pieces) < num_needed + num_hedges:
                    if not self._waiting or (self._is_strict and self._started):
                        break
                    feed = _Feed(seat=self._waiting.pop(0))
                    if self._is_strict:
                        feed.root = RootBuilder(leaf_bytes=reader.header.leaf_bytes)
                    self._feeds.append(feed)
                    launch(feed)
                if len(running) + len(pieces) < num_needed:
                    if self._is_strict and self._started:
                        return None
                    raise NotEnoughShards(
                        blob=reader.blob, expected=num_needed, got=len(pieces), faults=sort_faults(reader.faults)
                    )
                timeout: float | None = None
                if not self._is_strict and num_hedges == 0:
                    hedge_at = compute_hedge_time(start, first_done, half_done, num_bytes=slab.num_bytes)
                    timeout = max(0.0, hedge_at - loop.time())
                done, _ = await asyncio.wait(running, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    num_hedges = len(running)
                for task in done:
                    feed = running.pop(task)
                    try:
                        pieces[feed.seat.index] = task.result()
                    except SeatFailed as failure:
                        self._drop(feed, failure.fault)
                if pieces and first_done is None:
                    first_done = loop.time()
                if pieces and 2 * len(pieces) >= num_needed and half_done is None:
                    half_done = loop.time()
        finally:
            await cancel(running)
        for feed in running.values():
            reason = f"{loop.time() - start:.1f} s for a slab that others gave sooner, not waited for"
            self._drop(
                feed,
                SeatFault(seat=feed.seat.index, url=feed.seat.url, kind=FaultKind.TIMEOUT, reason=reason),
            )
        self._started = True
        return dict(sorted(pieces.items())[:num_needed])

    def check_roots(self) -> bool:
        """Compare the roots of whole shards with the header's; names the seats whose are others."""
        is_good = True
        for feed in self._feeds:
            expected = self._reader.header.shard_roots[feed.seat.index]
            got = feed.root.finish() if feed.root is not None else expected
            if got != expected:
                is_good = False
                self._reader.excluded.add(feed.seat.index)
                reason = f"bytes hash to root {got.hex()}, expected {expected.hex()}"
                self._reader.faults[feed.seat.index] = SeatFault(
                    seat=feed.seat.index, url=feed.seat.url, kind=FaultKind.BAD_SHARD, reason=reason
                )
        return is_good

    def close(self) -> None:
        """Close all streams."""
        for feed in self._feeds:
            if feed.stream is not None:
                feed.stream.close()

    async def _read_piece(self, feed: _Feed, slab: Slab) -> memoryview:
        reader = self._reader
        if feed.stream is None:
            feed.stream = await reader.links.open_stream(
                feed.seat,
                reader.blob,
                start=slab.shard_start,
                num_bytes=self._shard_bytes - slab.shard_start,
                deadline_seconds=reader.deadline_seconds,
            )
        piece = reader.pool.take(slab.num_bytes)
        await feed.stream.read_into(piece)
        if feed.root is not None:
            await asyncio.to_thread(feed.root.update, piece)
        return piece

    def _drop(self, feed: _Feed, fault: SeatFault) -> None:
        self._reader.faults[feed.seat.index] = fault
        if self._is_strict:
            self._reader.excluded.add(feed.seat.index)
        self._feeds.remove(feed)
        if feed.stream is not None:
            feed.stream.close()
