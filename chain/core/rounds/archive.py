"""Rounds that leave the state under an accumulator, so that the state stays bounded (DESIGN 8; case 29).

The newest rounds stay whole: at least 16, and all since the newest certified checkpoint, which newcomers replay.
An older one goes with its participants, updates, votes and the root it started from; its leaf in the run's Merkle
mountain range commits to all of them.  A node that executed those blocks keeps the records aside, for its own
views.  Invariant: rounds [0, num_archived) are under the accumulator, the others are in the state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from chain.core.accumulator import Accumulator, append, is_member
from chain.core.contracts.staking.keys import get_rules
from chain.core.hashing import ARCHIVED_ROUND_TAG, sha256
from chain.core.record_codec import RecordCodec, pack, unpack
from chain.core.rounds.book import RunBook
from chain.core.rounds.records import Round, Run, Update, Vote
from chain.core.types import Address

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


_ROUND = RecordCodec(Round)
_UPDATE = RecordCodec(Update)
_VOTE = RecordCodec(Vote)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedRound:
    """A round that has left the state, as its record says."""

    round: Round
    """Its own record."""
    participants: tuple[Address, ...]
    """V(t)."""
    updates: tuple[tuple[Address, Update], ...]
    """By worker, in commit order."""
    votes: tuple[tuple[Address, Vote], ...]
    """Of the last attempt, in order of voting."""


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
    return compute_record_leaf(encode_archived(t, round_record, participants, updates, votes))


def encode_archived(
    t: int, round_record: bytes, participants: bytes, updates: Sequence[bytes], votes: Sequence[tuple[int, bytes]]
) -> bytes:
    """Return one record of everything that an archived round was: what its leaf is the hash of."""
    return pack((t, round_record, participants, tuple(updates), tuple(votes)))


def compute_record_leaf(record: bytes) -> bytes:
    """Return the leaf of an archived round's record."""
    return sha256(ARCHIVED_ROUND_TAG + record)


def is_archived_record(accumulator: Accumulator, t: int, record: bytes, siblings: Sequence[bytes]) -> bool:
    """Tell whether a record is that of round t under an accumulator; total on anything a stranger sends."""
    return is_member(accumulator, t, compute_record_leaf(record), siblings)


def decode_archived(record: bytes) -> ArchivedRound:
    """Read a record whose leaf was checked; other bytes may raise anything."""
    _, round_record, participants, updates, votes = unpack(record)
    workers = [Address(participants[start : start + 20]) for start in range(0, len(participants), 20)]
    round_ = _ROUND.decode(round_record)
    return ArchivedRound(
        round=round_,
        participants=tuple(workers),
        updates=tuple(
            (workers[position], _UPDATE.decode(update)) for position, update in zip(round_.order, updates, strict=True)
        ),
        votes=tuple((workers[position], _VOTE.decode(vote)) for position, vote in votes),
    )


def collect_archived(book: RunBook, t: int) -> bytes:
    """Return an archived round's record out of a base that still has its parts (a node's own archive).

    Removes them from the book's overlay, which the caller throws away.  Raises RoundArchived where they are gone.
    """
    return encode_archived(t, *book.take_round(book.round(t)))


def _archive(book: RunBook, accumulator: Accumulator, t: int) -> Accumulator:
    round_ = book.round(t)
    record = encode_archived(t, *book.take_round(round_))
    book.forget_version(t, stale_evaluation=t - KEPT_EVALUATIONS)
    return append(accumulator, compute_record_leaf(record))
