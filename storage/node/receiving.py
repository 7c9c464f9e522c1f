"""Taking the body of a put straight from its socket, in a thread: for the bulk port, and for long bodies over HTTP.

An HTTP library hands a body on in small pieces, through buffers of its own and from thread to thread, which costs more
than hashing and writing it. A client that waits for "100 Continue" has sent nothing of its body yet; so the socket can
be read here, and the connection is closed after the answer, because the library has not seen the body. Invariant: no
byte beyond the body is read, and every wait has a deadline.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from contextlib import suppress

from aiohttp import web

from da.memory import BufferPool
from storage.core.errors import UploadInterrupted
from storage.core.pace import Pace
from storage.node.upload import Upload

CHUNK_BYTES = 256 * 1024
"""Received, written, hashed and folded at once: a group of a fold (da/core/folds.py), in half a second-level cache."""

DIRECT_MIN_BYTES = 256 * 1024
"""Shorter bodies over HTTP aren't worth a connection that is closed."""

_TIMEVAL = "ll"
"""Seconds and microseconds, as the system wants them."""


def receive_body(sock: socket.socket, upload: Upload, buffers: BufferPool, *, body_timeout_seconds: float) -> None:
    """Give ``upload`` its body; blocking.

    Raises: UploadInterrupted, UploadTooSlow, and what ``Upload.write`` raises.
    """
    expected, received = upload.offer.shard_bytes, 0
    pace = Pace(expected_bytes=expected)
    buffer = buffers.take(CHUNK_BYTES)
    filled, timeout = 0, sock.gettimeout()
    try:
        sock.setblocking(True)
        _limit_waits(sock, pace, body_timeout_seconds)
        while received < expected:
            started = time.monotonic()
            try:
                got = sock.recv_into(buffer[filled:], min(CHUNK_BYTES - filled, expected - received))
            except BlockingIOError as error:
                waited = time.monotonic() - started
                pace.note(0, int(waited * 1_000) + 1)
                if waited >= body_timeout_seconds:
                    raise TimeoutError(f"nothing for {waited:.1f} s") from error
                _limit_waits(sock, pace, body_timeout_seconds)
                continue
            milliseconds = int((time.monotonic() - started) * 1_000)
            pace.note(got, milliseconds)
            if milliseconds:
                _limit_waits(sock, pace, body_timeout_seconds)
            if got == 0:
                raise UploadInterrupted(got=received, expected=expected)
            filled += got
            received += got
            if filled == CHUNK_BYTES or received == expected:
                upload.write(buffer[:filled])
                filled = 0
    except OSError as error:  # TimeoutError is one; DiskFull is a refusal and passes
        raise UploadInterrupted(got=received, expected=expected) from error
    finally:
        buffers.give_back(buffer)
        with suppress(OSError):  # it may be gone
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, bytes(struct.calcsize(_TIMEVAL)))
            sock.settimeout(timeout)


def _limit_waits(sock: socket.socket, pace: Pace, most_seconds: float) -> None:
    """Let the system end a wait for bytes in time: one call a piece of the body, where a poll before each were two."""
    microseconds = max(1, min(int(most_seconds * 1_000_000), pace.compute_patience() * 1_000))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack(_TIMEVAL, *divmod(microseconds, 1_000_000)))


def borrow_socket(request: web.Request, num_bytes: int) -> socket.socket | None:
    """Return the socket of a request whose body of ``num_bytes`` has not been asked for; None where that won't do.

    The library reads nothing more of it; whoever has it sends the "100 Continue" and calls ``finish_borrowed``.
    """
    transport = request.transport
    if num_bytes < DIRECT_MIN_BYTES or not isinstance(transport, asyncio.Transport) or not transport.is_reading():
        return None
    raw = transport.get_extra_info("socket")
    if raw is None or transport.get_extra_info("sslcontext") is not None:
        return None
    if request.content.total_bytes:  # it did not wait
        return None
    transport.pause_reading()
    return socket.socket(fileno=socket.dup(raw.fileno()))


def finish_borrowed(request: web.Request, sock: socket.socket) -> None:
    """Give the socket up, and tell the library to wait for no body."""
    sock.close()
    request.content.feed_eof()
