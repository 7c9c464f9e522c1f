"""How slowly a body may come (SPEC.md 5): whoever sends slower holds a slot and room for nothing.

Only the time that the node waits for bytes counts, never what it needs itself for hashing and writing.
"""

from __future__ import annotations

from dataclasses import dataclass

from storage.core.errors import UploadTooSlow

MIN_BYTES_PER_SECOND = 128 * 1024
"""1 Mbit/s: also what a client's own deadline for a blob grows with."""

WINDOW_MILLISECONDS = 5_000
"""Of waiting; within each so many bytes must come. Long enough for a lost packet's worst retransmissions."""


@dataclass(slots=True)
class Pace:
    """The pace of one body; a window begins with the body and after each window that was fast enough."""

    expected_bytes: int
    """Of the body."""
    received_bytes: int = 0
    """Of it."""
    window_bytes: int = 0
    """Received in this window."""
    waited_milliseconds: int = 0
    """Waited in this window."""

    def compute_patience(self) -> int:
        """Return the milliseconds to wait at most for the next bytes."""
        return max(1, WINDOW_MILLISECONDS - self.waited_milliseconds)

    def note(self, num_bytes: int, milliseconds: int) -> None:
        """Note that bytes came (none: nothing did) after a wait.

        Raises: UploadTooSlow.
        """
        self.received_bytes += num_bytes
        self.window_bytes += num_bytes
        self.waited_milliseconds += milliseconds
        if self.received_bytes >= self.expected_bytes or self.waited_milliseconds < WINDOW_MILLISECONDS:
            return
        if self.window_bytes * 1_000 < self.waited_milliseconds * MIN_BYTES_PER_SECOND:
            raise UploadTooSlow(got=self.received_bytes, expected=self.expected_bytes, minimum=MIN_BYTES_PER_SECOND)
        self.window_bytes = self.waited_milliseconds = 0
