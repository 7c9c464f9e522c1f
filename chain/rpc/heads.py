"""What stays the same between two blocks: the environment of calls, and answers of system contracts' views.

A view's answer is a function of the newest block and the call, so one that was given is given again until a block
comes: pages and bots ask the same at every block.  Threads share it; a lost race computes an answer twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from chain.core.environment import BlockEnvironment, know_no_block
from chain.store import Snapshot

MAX_KEPT_BYTES = 16 << 20
"""Of answers and their calls; then all are forgotten."""

CallKey = tuple[str | None, ...]
"""The texts of a call's fields, as the client wrote them."""


@dataclass(slots=True, kw_only=True)
class Head:
    """A newest block."""

    height: int
    app_hash: bytes
    environment: BlockEnvironment
    """For system contracts, which never ask for a block's hash."""
    answers: dict[CallKey, str] = field(default_factory=dict)
    """By call: the result, as it is shown."""
    kept_bytes: int = 0
    past: tuple[int, dict[bytes, bytes | None]] | None = None
    """The block before it that was asked for last, and what has changed since."""
    suggested_tip: int | None = None
    """Wei a gas; None until somebody asks."""

    def keep(self, key: CallKey, answer: str) -> None:
        """Remember an answer."""
        self.kept_bytes += len(answer) + sum(len(text) for text in key if text is not None)
        if self.kept_bytes > MAX_KEPT_BYTES:
            self.answers = {}
            self.kept_bytes = 0
        self.answers[key] = answer


class HeadCache:
    """The newest head that was seen."""

    def __init__(self) -> None:
        """Know none."""
        self._head: Head | None = None

    def get(self, snapshot: Snapshot) -> Head:
        """Return the snapshot's head; one that is older than the newest has no memory."""
        height, app_hash = snapshot.height, snapshot.app_hash
        head = self._head
        if head is not None and head.height == height and head.app_hash == app_hash:
            return head
        environment = replace(snapshot.environment(), read_block_hash=know_no_block)
        made = Head(height=height, app_hash=app_hash, environment=environment)
        if head is None or height >= head.height or head.height - height > 1:
            self._head = made  # a large step back is another chain in the same place
        return made
