"""How long a round's exchange and an inner step take here: what a worker's proposal for H rests on (DESIGN 7).

Fed with every event of the trace, from several threads.  Waiting for others is no part of it: only the time in which
this worker disperses, commits and fetches, because that is what a larger H would hide.
"""

from __future__ import annotations

import threading
from collections import deque
from statistics import median

from training.core.proposal import Link
from training.worker.trace import EventKind, TraceEvent

ROUNDS_KEPT = 8
"""Rounds that a measurement is the median of: links and machines have bad moments."""

_KINDS = frozenset({EventKind.DISPERSE, EventKind.COMMIT, EventKind.FETCH})


class Pace:
    """Remembers the last rounds."""

    def __init__(self) -> None:
        """Nothing is measured yet."""
        self._lock = threading.Lock()
        self._exchange: dict[int, float] = {}
        self._steps: deque[float] = deque(maxlen=ROUNDS_KEPT)

    def note(self, event: TraceEvent) -> None:
        """Take an event of the trace."""
        seconds = event.end_seconds - event.start_seconds
        with self._lock:
            num_steps = event.counters.get("steps", 0)
            if event.kind is EventKind.TRAIN and num_steps > 0:
                self._steps.append(seconds / num_steps)
            elif event.kind in _KINDS and event.round >= 0:
                self._exchange[event.round] = self._exchange.get(event.round, 0.0) + seconds
                for index in [index for index in self._exchange if index <= event.round - ROUNDS_KEPT]:
                    del self._exchange[index]

    def measure(self) -> Link | None:
        """Return the medians; None before a round was trained and exchanged."""
        with self._lock:
            if not self._steps or not self._exchange:
                return None
            return Link(exchange_seconds=median(self._exchange.values()), step_seconds=median(self._steps))
