"""What a worker did and when, one JSON line an event (DESIGN 7, *Overlap*; case 21).

Times are seconds of the machine's monotonic clock (comparable between the threads of a worker and between
its restarts until the machine restarts) beside the wall clock.  From these lines ``compute_overlap`` says
which share of the exchange ran while inner steps ran, and the demo fills its table of bytes.
Invariant: a line is written whole or not at all; a torn last line (a killed process) is skipped on reading.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from training.worker.durable import close_with_gap, is_disk_full

LOG = logging.getLogger("trainer")

MAX_FILE_BYTES = 1 << 26
"""Of one file, about a hundred thousand rounds' events in a quiet run; the file before is kept as ``.previous``."""


class EventKind(StrEnum):
    """What a span of time was used for."""

    TRAIN = "train"
    """Inner steps, in the main thread."""
    APPLY = "apply"
    """Settled rounds entering the local weights, between two rounds."""
    COMPRESS = "compress"
    """Making the payload and the durable worker state."""
    WAIT = "wait"
    """The main thread had nothing to do; ``note`` says for what it waited."""
    DISPERSE = "disperse"
    """Own payload to the storage nodes."""
    COMMIT = "commit"
    """Transaction that names the payload, until its receipt."""
    FETCH = "fetch"
    """One payload of another worker from the storage nodes."""
    SETTLE = "settle"
    """Exact sum and outer step."""
    ATTEST = "attest"
    """Vote for the root, until its receipt."""
    CHECKPOINT = "checkpoint"
    """One checkpoint part to the storage nodes."""
    EVALUATE = "evaluate"
    """Held-out loss of the agreed weights."""
    RESTORE = "restore"
    """A state from a certified checkpoint."""
    TRAFFIC = "traffic"
    """Bytes at the sockets so far; an instant, not a span."""


EXCHANGE_KINDS = frozenset({EventKind.DISPERSE, EventKind.COMMIT, EventKind.FETCH, EventKind.SETTLE, EventKind.ATTEST})
"""What an exchange of a round consists of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceEvent:
    """One line of the trace."""

    kind: EventKind
    round: int
    """Round the work belongs to, -1 where it belongs to none."""
    start_seconds: float
    """Monotonic clock."""
    end_seconds: float
    """Monotonic clock, not before ``start_seconds``."""
    wall_seconds: float
    """Unix time at the end."""
    num_bytes: int = 0
    """Payload bytes moved, where bytes were moved."""
    note: str = ""
    """One readable word or line."""
    counters: dict[str, int] = field(default_factory=dict)
    """TRAFFIC: bytes by kind since the process began; TRAIN: steps, tokens, loss_micro, skipped, global_step (the one
    that comes next), rate_nano (of the last one); APPLY: own updates accepted and returned;
    EVALUATE: bits_a_byte_micro, where known."""


class Trace:
    """Appends events to a file; safe to use from several threads."""

    def __init__(self, path: Path, listeners: Sequence[Callable[[TraceEvent], None]] = ()) -> None:
        """Open ``path`` for appending; ``listeners`` hear every event too."""
        self._listeners = tuple(listeners)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._file = path.open("a", encoding="utf-8")
        self._lock = threading.Lock()
        self._is_full = False
        self._num_bytes = self._file.tell()
        if self._num_bytes > 0 and not _ends_with_newline(path):
            self._file.write("\n")

    def record(self, event: TraceEvent) -> None:
        """Append one event."""
        for listener in self._listeners:
            listener(event)
        line = json.dumps(
            {
                "kind": event.kind.value,
                "round": event.round,
                "start": round(event.start_seconds, 6),
                "end": round(event.end_seconds, 6),
                "wall": round(event.wall_seconds, 3),
                "bytes": event.num_bytes,
                "note": event.note,
                "counters": event.counters,
            },
            separators=(",", ":"),
        )
        with self._lock:
            if not self._file.closed:
                self._append(line)

    @contextmanager
    def span(self, kind: EventKind, round_index: int = -1) -> Iterator[Span]:
        """Record the time the block takes, also when it fails."""
        span = Span()
        start = time.monotonic()
        try:
            yield span
        except BaseException as error:
            span.note = span.note or type(error).__name__
            raise
        finally:
            self.record(
                TraceEvent(
                    kind=kind,
                    round=round_index,
                    start_seconds=start,
                    end_seconds=time.monotonic(),
                    wall_seconds=time.time(),
                    num_bytes=span.num_bytes,
                    note=span.note,
                    counters=span.counters,
                )
            )

    def _append(self, line: str) -> None:
        """Write a line, and turn over after it; on a full disk the trace has a gap, and the worker goes on."""
        try:
            self._file.write(line + "\n")
            self._file.flush()
            self._num_bytes += len(line) + 1  # ASCII
            if self._num_bytes >= MAX_FILE_BYTES:
                self._turn_over()
        except OSError as error:
            if not is_disk_full(error):
                raise
            if not self._is_full:
                LOG.warning("%s has a gap: %s", self._file.name, error.strerror)
            self._is_full = True
        else:
            self._is_full = False

    def _turn_over(self) -> None:
        """Begin a file anew, so that a worker of years fills no disk with its trace."""
        previous = self._path.with_name(self._path.name + ".previous")
        self._path.replace(previous)
        try:
            fresh = self._path.open("a", encoding="utf-8")
        except OSError:  # the next line tries again
            previous.replace(self._path)
            raise
        self._file.close()
        self._file = fresh
        self._num_bytes = 0

    def record_traffic(self, counters: dict[str, int]) -> None:
        """Record the socket counters as they stand."""
        now = time.monotonic()
        self.record(
            TraceEvent(
                kind=EventKind.TRAFFIC,
                round=-1,
                start_seconds=now,
                end_seconds=now,
                wall_seconds=time.time(),
                counters=counters,
            )
        )

    def close(self) -> None:
        """Close the file; later events are dropped."""
        with self._lock:
            close_with_gap(self._file)


@dataclass(slots=True)
class Span:
    """What the owner of a span may add before it ends."""

    num_bytes: int = 0
    """Payload bytes moved."""
    note: str = ""
    """One readable line."""
    counters: dict[str, int] = field(default_factory=dict)
    """Figures of the work."""


def load_trace(path: Path) -> list[TraceEvent]:
    """Read a trace; lines cut by a killed process are skipped."""
    events = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            raw = json.loads(line)
            events.append(
                TraceEvent(
                    kind=EventKind(raw["kind"]),
                    round=raw["round"],
                    start_seconds=raw["start"],
                    end_seconds=raw["end"],
                    wall_seconds=raw["wall"],
                    num_bytes=raw["bytes"],
                    note=raw["note"],
                    counters=raw["counters"],
                )
            )
        except (ValueError, KeyError, TypeError):
            continue
    return events


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """How much of the exchange was hidden behind inner steps."""

    exchange_seconds: float
    """Time in which at least one part of an exchange ran."""
    hidden_seconds: float
    """The part of it in which the inner steps of a *later* round ran."""
    train_seconds: float
    """Inner steps."""

    @property
    def share(self) -> float:
        """Hidden share of the exchange, 0..1; 1 where there was none."""
        return self.hidden_seconds / self.exchange_seconds if self.exchange_seconds > 0 else 1.0


def compute_overlap(events: Iterable[TraceEvent], *, first_round: int = 0, stop_round: int | None = None) -> Overlap:
    """Compute how much of the exchange of each round r ran during inner steps of rounds after r.

    For round 3 with an exchange from 10 s to 14 s and inner steps of round 4 from 11 s to 20 s:
    exchange 4 s, hidden 3 s, share 0.75.  Exchanges of rounds outside [first_round, stop_round) are left out:
    behind the last rounds that train there is nothing to hide behind.
    """
    train: dict[int, list[tuple[float, float]]] = {}
    exchange: dict[int, list[tuple[float, float]]] = {}
    for event in events:
        if event.end_seconds <= event.start_seconds:
            continue
        if event.kind is EventKind.TRAIN:
            train.setdefault(event.round, []).append((event.start_seconds, event.end_seconds))
        elif event.kind in EXCHANGE_KINDS and first_round <= event.round and not _is_past(event.round, stop_round):
            exchange.setdefault(event.round, []).append((event.start_seconds, event.end_seconds))
    exchange_seconds = hidden_seconds = 0.0
    for round_index, spans in exchange.items():
        merged = _union(spans)
        later = _union([span for other, own in train.items() if other > round_index for span in own])
        exchange_seconds += _length(merged)
        hidden_seconds += _length(_intersection(merged, later))
    train_seconds = _length(_union([span for own in train.values() for span in own]))
    return Overlap(exchange_seconds=exchange_seconds, hidden_seconds=hidden_seconds, train_seconds=train_seconds)


def _is_past(round_index: int, stop_round: int | None) -> bool:
    return stop_round is not None and round_index >= stop_round


def _union(spans: list[tuple[float, float]]) -> list[tuple[float, float]]:
    merged: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def _intersection(left: list[tuple[float, float]], right: list[tuple[float, float]]) -> list[tuple[float, float]]:
    common = []
    i = j = 0
    while i < len(left) and j < len(right):
        start, end = max(left[i][0], right[j][0]), min(left[i][1], right[j][1])
        if start < end:
            common.append((start, end))
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1
    return common


def _length(spans: list[tuple[float, float]]) -> float:
    return sum(end - start for start, end in spans)


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, 2)
        return file.read(1) == b"\n"
