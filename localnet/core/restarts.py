"""When a store that ended is started again: soon at first, later each time, and not for ever.

Pure: times come in as seconds of any clock that does not go back.
"""

from __future__ import annotations

from dataclasses import dataclass

FIRST_DELAY_SECONDS = 1.0
"""After the first end; twice as long after each further one."""

MAX_RESTARTS = 5
"""In one window; a store that ends more often has a reason that a start does not mend."""

WINDOW_SECONDS = 600.0
"""Ends that are longer ago don't count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restarts:
    """One store's ends, by time."""

    ended_at: tuple[float, ...] = ()

    def note_end(self, now: float) -> Restarts:
        """Return this with one more end; those before the window are forgotten."""
        return Restarts(ended_at=(*(at for at in self.ended_at if now - at < WINDOW_SECONDS), now))

    def compute_start(self) -> float | None:
        """Return when to start it again after its last end, None when it has ended too often."""
        if not self.ended_at or len(self.ended_at) > MAX_RESTARTS:
            return None
        return self.ended_at[-1] + FIRST_DELAY_SECONDS * (1 << len(self.ended_at) - 1)
