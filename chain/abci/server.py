"""ABCI over a socket: one handler per request type, answered in order (CometBFT v0.38, ABCI 2.0).

CometBFT opens four connections and expects on each the answers in the order of its requests.  Everything runs
on one event loop and handlers never wait, so the order is that of arrival and there is nothing to lock.  Only a
CheckTx whose signature somebody else is looking at stays at the head of its connection until that is done, or is
late (``chain.abci.verifying``), some tenths of a second at most.

A connection answers a few requests and gives the loop back, so a block doesn't wait for the checks that came before it
on another connection, and what CometBFT sends is always taken off its hands: while it can't write, a timer of its
socket client fires every 20 ns and takes a whole core (flushThrottleMS in v0.38).  A
handler that raises is a broken invariant: the answer isn't sent, the reason is logged, and ``serve`` raises
``HandlerFailed``, so that the process exits and is restarted from its last durable block.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, cast

from google.protobuf.message import DecodeError, Message

from chain.abci import abci_pb2 as pb
from chain.abci.wire import FrameReader, InvalidFrame, encode_answer, encode_frame, encode_length, read_plain_check
from chain.recursion import allow_evm_depth

log = logging.getLogger(__name__)

Handler = Callable[[Message], Message]
"""Request message -> response message of the same name."""

HANDLED_NAMES = (
    "info",
    "init_chain",
    "query",
    "check_tx",
    "commit",
    "list_snapshots",
    "offer_snapshot",
    "load_snapshot_chunk",
    "apply_snapshot_chunk",
    "prepare_proposal",
    "process_proposal",
    "extend_vote",
    "verify_vote_extension",
    "finalize_block",
)
"""Every case of Request but echo and flush; Response has the same, and exception."""


TURN_REQUESTS = 64
"""Requests of one connection that are answered before the others get their turn: some 3 ms of checks."""

MAX_WAITING_BYTES = 4 << 20
"""Requests that wait on one connection: a block, or some 25,000 transfers.  CometBFT waits before a commit until all
its checks are answered, so what waits here may hold up a block, by about a second at most."""

REMINDER_SECONDS = 0.5
"""After which a check that pends is looked at again, told or not."""

COLLECTOR_THRESHOLDS = (100_000, 20, 50)
"""Of the cycle collector: a block makes some ten objects a transaction that live to its end and are in no cycle, and
looking through them again and again took a fifth of FinalizeBlock.  What is in cycles waits in some 20 MB at most."""


_DRAINED_BYTES = 1 << 18
"""Read at once: what a socket's buffer holds."""

_TAGS = {name: encode_length(field.number << 3 | 2) for name, field in pb.Response.DESCRIPTOR.fields_by_name.items()}
"""Of Response's fields, all of them messages."""
_CHECK_TAG = _TAGS["check_tx"]

_FLUSH_REQUEST = pb.Request(flush=pb.RequestFlush()).SerializeToString()
_FLUSH_ANSWER = encode_frame(pb.Response(flush=pb.ResponseFlush()).SerializeToString())


class Checker(Protocol):
    """CheckTx without protobuf's objects: there are thousands a second."""

    def look_ahead(self, transactions: list[bytes]) -> None:
        """Begin to verify what waits to be checked, if that is worth it."""

    def is_pending(self, transaction: bytes) -> bool:
        """Say whether a check is worth waiting for; the server is told when that has changed."""

    def check(self, transaction: bytes) -> tuple[int, bytes]:
        """Return the result code and the encoded ResponseCheckTx."""


class Application(Protocol):
    """What the server needs of an application."""

    def get_handler(self, name: str) -> Handler:
        """Return the handler of a request name."""

    def get_checker(self) -> Checker:
        """Return what answers those CheckTx requests that hold a transaction and nothing else."""

    def attach(self, drain: Callable[[], None], resume: Callable[[], None]) -> None:
        """Call ``drain`` every few milliseconds while a handler takes long, ``resume`` when a check pends no more."""


class HandlerFailed(Exception):
    """A handler raised, or CometBFT's stream broke: the process must end."""

    def __init__(self, request: str, reason: str) -> None:
        """Keep the request's name."""
        super().__init__(f"ABCI {request}: {reason}")
        self.request = request


class AbciProtocol(asyncio.Protocol):
    """One connection."""

    def __init__(self, application: Application, fail: Callable[[BaseException], None]) -> None:
        """Answer by ``application``; report what ends the process to ``fail``."""
        self._handlers = {name: application.get_handler(name) for name in HANDLED_NAMES}
        self._checker = application.get_checker()
        self._fail = fail
        self._frames = FrameReader()
        self._waiting: deque[tuple[bytes, bytes]] = deque()
        """(message, the transaction of a plain CheckTx or nothing)."""
        self._waiting_bytes = 0
        self._transport: asyncio.Transport | None = None
        self._is_scheduled = False
        self._is_pending = False
        """The check at the head is waited for: ``resume`` goes on."""
        self._reminder: asyncio.TimerHandle | None = None
        self._is_paused = False
        self._is_stopped = False
        self.is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Take in what came, and answer unless an earlier request still waits for its turn."""
        if self._is_stopped:
            return
        self._take(data)
        if not self._is_scheduled and not self._is_pending:
            self._answer_some()

    def drain(self) -> None:
        """Take in what lies in the socket, and answer it later: for use while a handler takes long."""
        if self._transport is None or self._is_stopped or self._waiting_bytes > MAX_WAITING_BYTES:
            return
        try:
            data = os.read(self._transport.get_extra_info("socket").fileno(), _DRAINED_BYTES)
        except OSError:  # nothing there, or a broken connection, which the loop finds too
            return
        if data:  # the end of the stream is seen again by the loop
            self._take(data)
            if not self._is_pending:
                self._schedule()

    def resume(self) -> None:
        """Go on with a check that was waited for."""
        if self._is_pending:
            self._is_pending = False
            self._schedule()

    def _take(self, data: bytes) -> None:
        try:
            messages = self._frames.feed(data)
        except InvalidFrame as error:
            raise self._stop_for_stream("frame", error) from error
        transactions = list(map(read_plain_check, messages))
        self._waiting.extend(zip(messages, transactions, strict=True))
        self._waiting_bytes += sum(map(len, messages))
        checks = [transaction for transaction in transactions if transaction]
        if checks:
            self._checker.look_ahead(checks)

    def _answer_some(self) -> None:
        """Answer the next requests with one write; the loop comes back for the rest."""
        self._is_scheduled = False
        name = "frame"
        answers: list[bytes] = []
        checker, waiting = self._checker, self._waiting
        try:
            for _ in range(min(len(waiting), TURN_REQUESTS)):
                message, transaction = waiting[0]
                if transaction:
                    if checker.is_pending(transaction):
                        self._wait()
                        break
                    name = "check_tx"
                    answers.append(encode_answer(_CHECK_TAG, checker.check(transaction)[1]))
                elif message == _FLUSH_REQUEST:  # follows every other request when they come one by one
                    answers.append(_FLUSH_ANSWER)
                else:
                    request = pb.Request.FromString(message)
                    name = request.WhichOneof("value") or "unknown request"
                    answers.append(self._answer(name, request))
                waiting.popleft()
                self._waiting_bytes -= len(message)
        except DecodeError as error:
            raise self._stop_for_stream(name, error) from error
        except Exception as error:  # outermost loop of the connection: ends the process
            raise self._stop(HandlerFailed(name, f"{type(error).__name__}: {error}")) from error
        finally:
            if answers and self._transport is not None:
                self._transport.write(b"".join(answers))
        if waiting and not self._is_pending:
            self._schedule()
        self._regulate()

    def _wait(self) -> None:
        """Leave the check at the head until ``resume``; a timer asks again should that fail to come."""
        self._is_pending = True
        if self._reminder is None:
            self._reminder = asyncio.get_running_loop().call_later(REMINDER_SECONDS, self._remind)

    def _remind(self) -> None:
        self._reminder = None
        self.resume()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._answer_some)

    def _regulate(self) -> None:
        """Read no more while much waits, and again when it has become half of that."""
        if self._transport is None:
            return
        if not self._is_paused and self._waiting_bytes > MAX_WAITING_BYTES:
            self._is_paused = True
            self._transport.pause_reading()
        elif self._is_paused and self._waiting_bytes < MAX_WAITING_BYTES >> 1:
            self._is_paused = False
            self._transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        """Say that CometBFT went away: it opens all four connections again after its own restart."""
        self._transport = None
        self.is_lost = True
        if self._reminder is not None:
            self._reminder.cancel()
        if not self._frames.is_between_frames and not self._is_stopped:
            log.warning("connection closed within a request: %s", error or "end of stream")

    def _answer(self, name: str, request: pb.Request) -> bytes:
        """Return the frame of the answer."""
        if name == "echo":
            return encode_answer(_TAGS[name], pb.ResponseEcho(message=request.echo.message).SerializeToString())
        handler = self._handlers.get(name)
        if handler is None:
            raise HandlerFailed(
                name, "CometBFT sent a request that this application doesn't know; use CometBFT v0.38.x"
            )
        return encode_answer(_TAGS[name], handler(getattr(request, name)).SerializeToString())

    def _stop_for_stream(self, name: str, error: Exception) -> HandlerFailed:
        return self._stop(HandlerFailed(name, f"the stream from CometBFT can't be read: {error}"))

    def _stop(self, failure: HandlerFailed) -> HandlerFailed:
        """End the process; the caller raises, so that the traceback is logged and the connection closed."""
        log.critical("%s", failure)
        self._is_stopped = True
        self._fail(failure)
        return failure


async def serve(
    application: Application,
    socket_path: Path,
    stopping: asyncio.Event,
    *,
    listening: asyncio.Event | None = None,
) -> None:
    """Serve until ``stopping`` is set; raises HandlerFailed.  Sets ``listening`` when CometBFT may connect."""
    allow_evm_depth()
    loop = asyncio.get_running_loop()
    failed: asyncio.Future[None] = loop.create_future()

    def fail(error: BaseException) -> None:
        if not failed.done():
            failed.set_exception(error)

    connections: list[AbciProtocol] = []

    def connect() -> AbciProtocol:
        connections[:] = [each for each in connections if not each.is_lost]
        connections.append(AbciProtocol(application, fail))
        return connections[-1]

    def drain() -> None:
        for connection in connections:
            connection.drain()

    def resume() -> None:
        for connection in connections:
            connection.resume()

    application.attach(drain, resume)
    server = await loop.create_unix_server(connect, str(socket_path))
    log.info("ABCI listens at %s", socket_path)
    if listening is not None:
        listening.set()
    waiting = asyncio.ensure_future(stopping.wait())
    waiting.add_done_callback(lambda _: None if failed.done() else failed.set_result(None))
    try:
        with _collecting_rarely():
            await failed
    finally:
        waiting.cancel()
        server.close()


@contextmanager
def _collecting_rarely() -> Iterator[None]:
    """Leave what is loaded by now out of the cycle collector's work, and let a block be executed between its runs."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECTOR_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
