"""The client for code that does not wait in an event loop: same words, same errors, any thread.

One daemon thread runs the loop and owns all sockets. Invariant: a call that is interrupted (Ctrl-C) is cancelled, so
no transfer goes on behind the caller's back.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from da.client import AsyncBlobClient
from da.core.types import Certificate
from da.dispersal import Dispersal
from da.range_reader import RangeReader

CLOSE_SECONDS = 5.0
"""Longest wait for connections to close and for the thread to end."""

P = ParamSpec("P")
T = TypeVar("T")


def _wait_for(
    method: Callable[Concatenate[AsyncBlobClient, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[BlobClient, P], T]:
    """Return the method of ``BlobClient`` that waits for ``method``: same arguments, same words."""

    @wraps(method)
    def call(self: BlobClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._run(method(self._client, *args, **kwargs))

    return call


def _get_certificate(
    method: Callable[P, Coroutine[Any, Any, Dispersal]],
) -> Callable[P, Coroutine[Any, Any, Certificate]]:
    """Return ``method``, whose answer is the certificate alone."""

    @wraps(method)
    async def call(*args: P.args, **kwargs: P.kwargs) -> Certificate:
        return (await method(*args, **kwargs)).certificate

    return call


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

    disperse = _wait_for(_get_certificate(AsyncBlobClient.disperse))
    disperse_with_report = _wait_for(AsyncBlobClient.disperse)
    disperse_stream = _wait_for(AsyncBlobClient.disperse_stream)
    identify = _wait_for(AsyncBlobClient.identify)
    disperse_batch = _wait_for(AsyncBlobClient.disperse_batch)
    retrieve = _wait_for(AsyncBlobClient.retrieve)
    retrieve_to_file = _wait_for(AsyncBlobClient.retrieve_to_file)
    open_ranges = _wait_for(AsyncBlobClient.open_ranges)
    sample = _wait_for(AsyncBlobClient.sample)

    def read_range(self, reader: RangeReader, start: int, stop: int) -> bytes:
        """Return bytes [start, stop) of a blob that ``open_ranges`` of this client opened."""
        return self._run(reader.read(start, stop))

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
