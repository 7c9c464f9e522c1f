"""When to say again what stays in the way: at once, and then now and then, however often it is met.

A worker tries twice a second and waits for hours; a line for each try would hide all others.
"""

from __future__ import annotations

import time

SAY_AGAIN_SECONDS = 15.0
"""Between two lines about the same obstacle."""

MAX_OBSTACLES = 64
"""Remembered at most; obstacles are few, but their reasons may carry numbers."""


class Said:
    """What was said and when; for one thread."""

    def __init__(self) -> None:
        """Nothing was said yet."""
        self._said_at: dict[str, float] = {}

    def is_due(self, obstacle: str, again_seconds: float = SAY_AGAIN_SECONDS) -> bool:
        """Say whether to speak of an obstacle now; the caller then does."""
        now = time.monotonic()
        if now < self._said_at.get(obstacle, float("-inf")) + again_seconds:
            return False
        if len(self._said_at) >= MAX_OBSTACLES:
            self._said_at.clear()
        self._said_at[obstacle] = now
        return True
