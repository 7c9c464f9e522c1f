"""The client for code that does not wait in an event loop: same words, same errors, any thread.

One daemon thread runs the loop and owns all sockets. Invariant: a call that is interrupted (Ctrl-C) is cancelled, so
no transfer goes on behind the caller's back.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

from da.auditing import Sampling
from da.batch_dispersal import BatchDispersal
from da.client import AsyncBlobClient, Dispersal, Retrieved, RetrieveReport
from da.core.merkle import BULK_LEAF_BYTES, PAYLOAD_LEAF_BYTES
from da.core.types import BlobId, Certificate, Committee, Height, Tier
from da.range_reader import RangeReader
from da.slabs import Source

CLOSE_SECONDS = 5.0
"""Longest wait for connections to close and for the thread to end."""

T = TypeVar("T")


class BlobClient:
    """Writes and reads blobs; thread-safe; a context manager."""

    def __init__(self, *, deadline_seconds: float = 30.0, has_bulk: bool = True) -> None:
        self._client = AsyncBlobClient(deadline_seconds=deadline_seconds, has_bulk=has_bulk)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="da-client", daemon=True)
        self._thread.start()

    def __enter__(self) -> BlobClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def bytes_sent(self) -> int:
        """Bytes handed to the sockets so far."""
        return self._client.traffic.bytes_sent

    @property
    def bytes_received(self) -> int:
        """Bytes taken from the sockets so far."""
        return self._client.traffic.bytes_received

    def disperse(
        self,
        data: bytes | bytearray | memoryview,
        *,
        committee: Committee,
        genesis_hash: bytes,
        tier: Tier,
        expiry: Height,
        leaf_bytes: int = PAYLOAD_LEAF_BYTES,
        num_data: int | None = None,
    ) -> Certificate:
        """Write a blob and return its certificate; see ``AsyncBlobClient.disperse``."""
        return self.disperse_with_report(
            data,
            committee=committee,
            genesis_hash=genesis_hash,
            tier=tier,
            expiry=expiry,
            leaf_bytes=leaf_bytes,
            num_data=num_data,
        ).certificate

    def disperse_with_report(
        self,
        data: bytes | bytearray | memoryview,
        *,
        committee: Committee,
        genesis_hash: bytes,
        tier: Tier,
        expiry: Height,
        leaf_bytes: int = PAYLOAD_LEAF_BYTES,
        num_data: int | None = None,
    ) -> Dispersal:
        """Write a blob and return its certificate and the seats that did not sign."""
        return self._run(
            self._client.disperse(
                data,
                committee=committee,
                genesis_hash=genesis_hash,
                tier=tier,
                expiry=expiry,
                leaf_bytes=leaf_bytes,
                num_data=num_data,
            )
        )

    def disperse_batch(
        self,
        blobs: Sequence[bytes],
        *,
        committee: Committee,
        genesis_hash: bytes,
        tier: Tier,
        expiry: Height,
        leaf_bytes: int = PAYLOAD_LEAF_BYTES,
    ) -> BatchDispersal:
        """Write many small blobs with few signatures; see ``AsyncBlobClient.disperse_batch``."""
        return self._run(
            self._client.disperse_batch(
                blobs,
                committee=committee,
                genesis_hash=genesis_hash,
                tier=tier,
                expiry=expiry,
                leaf_bytes=leaf_bytes,
            )
        )

    def disperse_stream(
        self,
        source: Source,
        *,
        committee: Committee,
        genesis_hash: bytes,
        tier: Tier,
        expiry: Height,
        leaf_bytes: int = BULK_LEAF_BYTES,
        num_data: int | None = None,
    ) -> Dispersal:
        """Write a blob of any size in constant memory; see ``AsyncBlobClient.disperse_stream``."""
        return self._run(
            self._client.disperse_stream(
                source,
                committee=committee,
                genesis_hash=genesis_hash,
                tier=tier,
                expiry=expiry,
                leaf_bytes=leaf_bytes,
                num_data=num_data,
            )
        )

    def retrieve_to_file(
        self,
        blob: BlobId,
        path: Path,
        *,
        committee: Committee,
        max_bytes: int,
        on_progress: Callable[[int], None] = lambda _: None,
    ) -> RetrieveReport:
        """Read a blob of any size into a file in constant memory; see ``AsyncBlobClient.retrieve_to_file``."""
        return self._run(
            self._client.retrieve_to_file(blob, path, committee=committee, max_bytes=max_bytes, on_progress=on_progress)
        )

    def retrieve(self, blob: BlobId, *, committee: Committee, max_bytes: int) -> Retrieved:
        """Read a blob; see ``AsyncBlobClient.retrieve``."""
        return self._run(self._client.retrieve(blob, committee=committee, max_bytes=max_bytes))

    def open_ranges(self, blob: BlobId, *, committee: Committee) -> RangeReader:
        """Open a blob for ``read_range``; see ``AsyncBlobClient.open_ranges``."""
        return self._run(self._client.open_ranges(blob, committee=committee))

    def read_range(self, reader: RangeReader, start: int, stop: int) -> bytes:
        """Return bytes [start, stop) of a blob that ``open_ranges`` of this client opened."""
        return self._run(reader.read(start, stop))

    def sample(self, blob: BlobId, *, committee: Committee, num_samples: int) -> Sampling:
        """Ask random seats for a random leaf each; see ``da.auditing``."""
        return self._run(self._client.sample(blob, committee=committee, num_samples=num_samples))

    def close(self) -> None:
        """Close all connections and end the thread; a second call does nothing."""
        if self._loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(self._shut_down(), self._loop).result(CLOSE_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSE_SECONDS)
        self._loop.close()

    async def _shut_down(self) -> None:
        running = asyncio.all_tasks() - {asyncio.current_task()}
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await self._client.close()
        await self._loop.shutdown_default_executor()

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        if self._loop.is_closed():
            call.close()
            raise RuntimeError("this client is closed; make a new one")
        future = asyncio.run_coroutine_threadsafe(call, self._loop)
        try:
            return future.result()
        finally:
            future.cancel()  # does nothing when it is done; ends the transfer when this thread was interrupted
