"""One evaluation of the agreed weights at a time, beside everything else: of a large model it takes minutes.

The thread that votes starts it and asks for its end; a vote that waited for it would come too late.
"""

from __future__ import annotations

import logging
import threading
from typing import Any

from training.worker.ending import EVALUATION_THREAD
from training.worker.ports import Rules
from training.worker.trace import EventKind, Trace

LOG = logging.getLogger("trainer")


class Evaluating:
    """An evaluation that runs, or none; for one asking thread."""

    def __init__(self, rules: Rules, trace: Trace) -> None:
        """Nothing is evaluated yet."""
        self._rules = rules
        self._trace = trace
        self._thread: threading.Thread | None = None
        self._version = -1
        self._loss: float | None = None
        self._failure: BaseException | None = None

    @property
    def is_busy(self) -> bool:
        """Return whether there is an evaluation whose end nobody has taken."""
        return self._thread is not None

    def start(self, state: Any, version: int) -> None:
        """Begin; there must be none."""
        assert self._thread is None
        self._version, self._loss, self._failure = version, None, None
        # A daemon: a worker that is told to stop doesn't wait for it.
        self._thread = threading.Thread(target=self._evaluate, args=(state,), name=EVALUATION_THREAD, daemon=True)
        self._thread.start()

    def take(self) -> tuple[int, float] | None:
        """Return (version, loss) once it has ended, None before; raises what ended it."""
        if self._thread is None or self._thread.is_alive():
            return None
        self._thread = None
        if self._failure is not None:
            raise self._failure
        assert self._loss is not None
        return self._version, self._loss

    def _evaluate(self, state: Any) -> None:
        try:
            with self._trace.span(EventKind.EVALUATE, self._version) as span:
                loss = self._rules.evaluate(state)
                span.note = f"{loss:.6f}"
                bits = self._rules.compute_bits_a_byte(loss)
                if bits is not None:
                    span.counters = {"bits_a_byte_micro": round(bits * 1_000_000)}
            self._loss = loss
        except BaseException as error:  # the outermost frame of this thread: handed to whoever asks next
            LOG.exception("the evaluation of version %d has failed", self._version)
            self._failure = error
