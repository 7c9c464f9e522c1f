"""Starts a verifier beside the application and takes its verdicts (``chain.abci.verifier``).

Recovering a sender takes as long as everything else that the application does with a transfer, and one interpreter
runs one thread.  A hint and nothing more: what the verifier hasn't answered within WAIT_SECONDS is computed in place,
with the same result, and so is what it has refused.  It is started when there is much to do and a processor for it.
Invariants: nothing here waits but for the end of a killed process; a verdict is learned only under the chain id that
it was asked for.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import subprocess
import time
from collections import deque
from collections.abc import Callable, Sequence
from enum import IntEnum

from chain.abci.busyness import Busyness
from chain.abci.draining import do_nothing
from chain.abci.verifier_wire import Terms, decode_answer, decode_record, encode_batch, encode_terms
from chain.abci.wire import FrameReader
from chain.core.records import Transaction
from chain.own_modules import make_command
from da.core.receipt import remember_verdict

log = logging.getLogger(__name__)

COMMAND: Sequence[str] = make_command("chain.abci.verifier")
WAIT_SECONDS = 0.2
"""Without an answer, after which what was asked for is computed in place; an answer takes a few milliseconds."""
REST_SECONDS = (1.0, 30.0)
"""In which it isn't asked after that: there is no processor for it, and what it does late was done twice.  Doubles up
to the second, and starts again after REST_ANSWERS in time."""
REST_ANSWERS = 1_000
HUNG_SECONDS = 5.0
"""Without an answer, after which it is killed and another one started."""
START_SECONDS = 30.0
"""For it to get ready; it takes a fifth of a second where there is a processor."""
STOP_SECONDS = 1.0
"""For it to end once its socket is closed."""
RESTART_SECONDS = (1.0, 60.0)
"""Before another one is started; doubles up to the second while none answers."""
MAX_ASKED = 8_192
"""Transactions that wait for verdicts: 0.3 s of its work.  More are computed in place."""
MAX_BATCH = 32
"""Transactions that are answered together, after a millisecond or two."""
MAX_SENT = 2
"""Batches on their way, so that it never waits for work; what comes meanwhile is gathered, until it fills a batch."""
_READ_BYTES = 1 << 18


class VerifierUse(IntEnum):
    """``verifier`` in app.toml."""

    AUTOMATIC = -1
    """While there is much to do and a processor for it."""
    NEVER = 0
    ALWAYS = 1


class _Process:
    """A running verifier and the way to it."""

    __slots__ = ("_loop", "_outgoing", "_popen", "_socket", "frames")

    def __init__(self, loop: asyncio.AbstractEventLoop, on_readable: Callable[[], None]) -> None:
        """Start it; ``on_readable`` is called when it has said something, or has ended."""
        self._loop = loop
        self._outgoing = bytearray()
        self.frames = FrameReader()
        self._socket, theirs = socket.socketpair()
        try:
            with theirs:
                self._popen = subprocess.Popen(COMMAND, stdin=theirs.fileno(), stdout=subprocess.DEVNULL)
        except OSError:
            self._socket.close()
            raise
        self._socket.setblocking(False)
        loop.add_reader(self._socket, on_readable)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._popen.pid

    def send(self, data: bytes) -> None:
        """Send what the socket takes and keep the rest until it takes more."""
        self._outgoing += data
        if len(self._outgoing) == len(data):
            self._flush()

    def receive(self) -> bytes | None:
        """Return what came, empty where nothing did, None when it has ended."""
        try:
            return self._socket.recv(_READ_BYTES) or None
        except BlockingIOError:
            return b""
        except OSError:
            return None

    def close(self, *, is_killed: bool) -> int | None:
        """End it and return its exit code, None where it takes longer than STOP_SECONDS."""
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._socket.close()
        if is_killed:
            self._popen.kill()
        try:
            return self._popen.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._popen.kill()  # the kernel may take its time, a block may not
            return self._popen.poll()

    def _flush(self) -> None:
        try:
            sent = self._socket.send(self._outgoing)
        except BlockingIOError:
            sent = 0
        except OSError:
            return  # it has ended, which reading finds
        del self._outgoing[:sent]
        if self._outgoing:
            self._loop.add_writer(self._socket, self._flush)
        else:
            self._loop.remove_writer(self._socket)


class Verifier:
    """The verifier of one application: started, asked, given up and started again."""

    def __init__(self, use: VerifierUse, learn: Callable[[bytes, Transaction], None]) -> None:
        """Hand each verdict to ``learn`` with the transaction's bytes; nothing happens before ``attach``."""
        self._use = use
        self._learn = learn
        self._busyness = Busyness()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._resume: Callable[[], None] = do_nothing
        self._process: _Process | None = None
        self._is_ready = False
        self._terms: Terms | None = None
        self._told: Terms | None = None
        """The terms that the process has."""
        self._batches: deque[tuple[int, int, Sequence[bytes]]] = deque()
        """(number, chain id, transactions) that were asked for and not answered."""
        self._pending: set[bytes] = set()
        """Transactions whose verdict is worth waiting for."""
        self._gathered: list[bytes] = []
        """Of those, the ones that were not sent yet."""
        self._number = 0
        self._num_answers = 0
        self._seen_answers = 0
        """At the timer's last look."""
        self._silent_since = 0.0
        self._is_late = False
        self._rest = REST_SECONDS[0]
        self._rest_until = 0.0
        self._num_in_time = 0
        """Answers since it was late."""
        self._timer: asyncio.TimerHandle | None = None
        self._pause = RESTART_SECONDS[0]
        self._start_at = 0.0
        self._started_at = 0.0

    @property
    def pid(self) -> int | None:
        """Of its process, None while there is none."""
        return self._process.pid if self._process is not None else None

    @property
    def is_ready(self) -> bool:
        """Whether a process is there that answers."""
        return self._is_ready

    def attach(self, resume: Callable[[], None]) -> None:
        """Work on the running event loop, and call ``resume`` when a verdict has come or isn't waited for any more."""
        self._loop = asyncio.get_running_loop()
        self._resume = resume

    def set_terms(self, terms: Terms | None) -> None:
        """Judge by ``terms`` from now on."""
        if terms != self._terms:
            self._terms = terms
        if terms is None:
            self._pending.clear()
            self._gathered.clear()
            self._resume()

    def ask(self, transactions: Sequence[bytes]) -> None:
        """Have transactions verified, if somebody is there to do it; those must not be known yet."""
        if not self._is_wanted(len(transactions)):
            return
        terms, process = self._terms, self._process
        if process is None or not self._is_ready:
            now = time.monotonic()
            if process is None and now >= self._start_at:
                self._start()
            elif process is not None and now >= self._started_at + START_SECONDS:
                self._lose("doesn't get ready")
            return
        pending = self._pending
        new = [raw for raw in transactions if raw not in pending]
        if terms is None or self._is_late or self._is_resting() or len(pending) + len(new) > MAX_ASKED:
            return
        if not new:
            return
        pending.update(new)
        self._gathered += new
        self._send_gathered()
        self._arm()

    def is_pending(self, transaction: bytes) -> bool:
        """Say whether a verdict is on its way and worth waiting for."""
        return transaction in self._pending

    def drain(self) -> None:
        """Take in what has been answered, also while a handler takes long, and have the checks go on."""
        num_answers = self._num_answers
        while self._process is not None:
            data = self._process.receive()
            if data is None:
                self._lose("has ended")
            elif data:
                self._read(data)
            if not data or len(data) < _READ_BYTES:
                break
        if not self._batches:
            self._is_late = False
        if self._num_answers != num_answers:
            self._send_gathered()
            self._resume()

    def _read(self, data: bytes) -> None:
        assert self._process is not None
        try:
            for message in self._process.frames.feed(data):
                self._take(*decode_answer(message))
        except ValueError as error:  # no frame, no msgpack, no record, or not what was asked
            self._lose(f"can't be understood ({error})")

    def close(self) -> None:
        """End the process; nobody is asked any more."""
        self._use = VerifierUse.NEVER
        if self._timer is not None:
            self._timer.cancel()
        if self._process is not None:
            self._process.close(is_killed=False)
            self._process = None
        self._forget()

    def _is_wanted(self, number: int) -> bool:
        if self._use == VerifierUse.NEVER or self._loop is None:
            return False
        if self._use == VerifierUse.ALWAYS:
            return True
        self._busyness.note(number)
        return self._busyness.is_worthwhile

    def _is_resting(self) -> bool:
        return time.monotonic() < self._rest_until

    def _send_gathered(self) -> None:
        process, terms = self._process, self._terms
        if process is None or terms is None:
            return
        frames: list[bytes] = []
        while self._gathered and (len(self._batches) < MAX_SENT or len(self._gathered) >= MAX_BATCH):
            if self._told is not terms:
                frames.append(encode_terms(terms))
                self._told = terms
            batch, self._gathered = self._gathered[:MAX_BATCH], self._gathered[MAX_BATCH:]
            self._number += 1
            self._batches.append((self._number, terms.chain_id, batch))
            frames.append(encode_batch(self._number, batch))
        if frames:
            process.send(b"".join(frames))

    def _start(self) -> None:
        assert self._loop is not None
        try:
            self._process = _Process(self._loop, self.drain)
        except OSError as error:
            self._delay_start()
            log.warning("no verifier can be started: %s; transactions are verified in place", error)
            return
        self._started_at = time.monotonic()
        log.info("verifier started, process %d", self._process.pid)

    def _take(self, number: int, records: Sequence[bytes], signed: Sequence[tuple[bytes, bytes, bytes]]) -> None:
        self._num_answers += 1
        if number == 0:
            self._is_ready = True
            return
        if not self._batches or self._batches[0][0] != number:
            raise ValueError(f"an answer to batch {number}, which wasn't asked for")
        _, chain_id, transactions = self._batches.popleft()
        self._pause = RESTART_SECONDS[0]
        self._num_in_time += not self._is_late
        if self._num_in_time == REST_ANSWERS:
            self._rest = REST_SECONDS[0]
        is_current = self._terms is not None and self._terms.chain_id == chain_id
        for raw, record in zip(transactions, records, strict=True):
            self._pending.discard(raw)
            if record and is_current:
                self._learn(raw, decode_record(record, raw, chain_id))
        for key, signature, message in signed:
            remember_verdict(key, signature, message, is_valid=True)

    def _arm(self) -> None:
        if self._timer is None and self._loop is not None:
            self._seen_answers = self._num_answers
            self._silent_since = time.monotonic()
            self._timer = self._loop.call_later(WAIT_SECONDS, self._look)

    def _look(self) -> None:
        """Give up waiting when nothing was answered since the last look, and the process when that lasts."""
        self._timer = None
        self.drain()
        if self._process is None or not self._batches:
            return
        if self._num_answers == self._seen_answers:
            if time.monotonic() - self._silent_since > HUNG_SECONDS:
                self._lose("doesn't answer")
                return
            if not self._is_late:
                self._is_late = True
                self._rest_until = time.monotonic() + self._rest
                self._rest = min(2 * self._rest, REST_SECONDS[1])
                self._num_in_time = 0
                self._pending.clear()
                self._gathered.clear()
                self._resume()
        else:
            self._seen_answers = self._num_answers
            self._silent_since = time.monotonic()
        assert self._loop is not None
        self._timer = self._loop.call_later(WAIT_SECONDS, self._look)

    def _lose(self, reason: str) -> None:
        """Go on without it, and start another one later."""
        assert self._process is not None
        pid = self._process.pid
        code = self._process.close(is_killed=True)
        self._process = None
        self._forget()
        self._delay_start()
        log.warning(
            "the verifier, process %d, %s (exit code %s); verifying in place until there is another one",
            pid,
            reason,
            code,
        )
        self._resume()

    def _delay_start(self) -> None:
        self._start_at = time.monotonic() + self._pause
        self._pause = min(2 * self._pause, RESTART_SECONDS[1])

    def _forget(self) -> None:
        self._is_ready = self._is_late = False
        self._told = None
        self._batches.clear()
        self._pending.clear()
        self._gathered.clear()
