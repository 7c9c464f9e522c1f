"""Rounds that leave the state under an accumulator, so that the state stays bounded (DESIGN 8; case 29).

The newest rounds stay whole: at least 16, and all since the newest certified checkpoint, which newcomers replay.
An older one goes with its participants, updates, votes and the root it started from; its leaf in the run's Merkle
mountain range commits to all of them.  A node that executed those blocks keeps the records aside, for its own
views.  Invariant: rounds [0, num_archived) are under the accumulator, the others are in the state.
"""

from __future__ import annotations

from collections.abc import Sequence

from chain.core.accumulator import Accumulator, append
from chain.core.contracts.staking.keys import get_rules
from chain.core.hashing import ARCHIVED_ROUND_TAG, sha256
from chain.core.record_codec import pack
from chain.core.rounds.book import RunBook
from chain.core.rounds.records import Run

ARCHIVED_PREFIXES = frozenset({b"t/o", b"t/V", b"t/u", b"t/v", b"t/R"})
"""Keys of round, participants, update, vote and root; whoever deletes one has put it under the accumulator."""

KEPT_ROUNDS = 16
"""Settled rounds that stay whole (DESIGN 8)."""
KEPT_EVALUATIONS = 1_024
"""Versions whose evaluation stays: a loss curve as wide as a screen."""
ARCHIVED_ROUNDS_A_BLOCK = 2
"""A round has at most 64 updates and votes, some 130 records."""
RULES = 2
"""The version of the rules from which on rounds are archived."""


def process_archive(book: RunBook) -> bool:
    """Archive some old rounds; say whether more wait."""
    if get_rules(book.turn.state) < RULES:
        return False
    run = book.run
    stop = compute_archive_stop(run)
    if run.num_archived >= stop:
        return False
    accumulator = book.get_accumulator()
    for t in range(run.num_archived, min(stop, run.num_archived + ARCHIVED_ROUNDS_A_BLOCK)):
        accumulator = _archive(book, accumulator, t)
        run.num_archived = t + 1
    book.save_accumulator(accumulator)
    return run.num_archived < stop


def compute_archive_stop(run: Run) -> int:
    """Return the first round that stays in the state.

    ``ready`` looks at the last 2F roots; the payloads of rounds since the newest certified checkpoint are pinned.
    """
    kept = max(KEPT_ROUNDS, 2 * run.params.num_fragments, 2 * run.pending.num_fragments)
    return max(0, min(run.num_released, run.num_settled - kept))


def compute_leaf(
    t: int, round_record: bytes, participants: bytes, updates: Sequence[bytes], votes: Sequence[tuple[int, bytes]]
) -> bytes:
    """Return what the accumulator holds of a round: its records as they were in the state.

    ``updates`` in commit order; ``votes`` of the last attempt, (participant, record) in order of voting.
    """
    return sha256(ARCHIVED_ROUND_TAG + pack((t, round_record, participants, tuple(updates), tuple(votes))))


def _archive(book: RunBook, accumulator: Accumulator, t: int) -> Accumulator:
    round_ = book.round(t)
    records = book.take_round(round_)
    book.forget_version(t, stale_evaluation=t - KEPT_EVALUATIONS)
    return append(accumulator, compute_leaf(t, *records))
