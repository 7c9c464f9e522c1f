"""Blocking work on a socket, in a thread that a cancelled task does not leave behind."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress


async def run_cut(threads: Executor, sock: socket.socket, work: Callable[[], None]) -> None:
    """Run work that waits for ``sock`` in a thread, to its end: whoever is cancelled cuts the connection under it."""
    running = asyncio.get_running_loop().run_in_executor(threads, work)
    try:
        await asyncio.shield(running)
    except asyncio.CancelledError:
        with suppress(OSError):  # the other side was faster
            sock.shutdown(socket.SHUT_RDWR)
        await asyncio.wait([running])
        if not running.cancelled():
            running.exception()  # what was cut has no say
        raise
