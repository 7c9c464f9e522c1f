"""What a worker says of updates that it refuses: each once, by its sender, and why.

The vote is a bitmap, and the chain says no more of a refused update than that it was invalid; so whoever ran another
version of the software, or lied, is found by these lines, at the sender and at every honest member.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

LOG = logging.getLogger("trainer")

MAX_SAID_A_ROUND = 8
"""Lines about others' updates; of what is beyond, the number is said."""


class Refusals:
    """What was said; for one thread."""

    def __init__(self, me: str) -> None:
        """Say nothing yet; ``me`` is this worker's address."""
        self._me = me
        self._said: set[tuple[int, str]] = set()

    def has_said(self, round_index: int, sender: str) -> bool:
        """Return whether a sender's update of a round was spoken of."""
        return (round_index, sender) in self._said

    def say(self, round_index: int, refused: Iterable[tuple[str, str]]) -> None:
        """Log (sender, why) of a round's refused updates, those that were not said before."""
        self._said = {(index, sender) for index, sender in self._said if index >= round_index}
        new = [(sender, why) for sender, why in refused if (round_index, sender) not in self._said]
        self._said |= {(round_index, sender) for sender, _ in new}
        for _, why in (each for each in new if each[0] == self._me):
            LOG.warning("round %d: our own update is invalid, and refused: %s", round_index, why)
        others = [each for each in new if each[0] != self._me]
        for sender, why in others[:MAX_SAID_A_ROUND]:
            LOG.warning("round %d: we refuse the update of %s: %s", round_index, sender, why)
        if len(others) > MAX_SAID_A_ROUND:
            LOG.warning("round %d: we refuse %d more updates", round_index, len(others) - MAX_SAID_A_ROUND)
