"""Attestation: votes over (root, refused updates) and reports of missing payloads (DESIGN 4.1).

E is the live part of V.  A vote waits until the round before has settled, because the root depends on it.
Whoever reported a payload missing may still vote in the same attempt, should it find it; never twice.
"""

from __future__ import annotations

from chain.core.abi.refusal import Refusal
from chain.core.rounds.bitmaps import compute_full
from chain.core.rounds.book import RunBook
from chain.core.rounds.committing import get_live_position
from chain.core.rounds.params import MAX_LOCAL_STEPS, MAX_RANK
from chain.core.rounds.records import NO_ROOT, Round, RoundState, Vote
from chain.core.types import Address, Root


def process_attest(
    book: RunBook, sender: Address, t: int, attempt: int, root: Root, refused: int, rank: int, local_steps: int
) -> None:
    """Record a vote."""
    # CHECKS
    round_, position = _check_voter(book, sender, t, attempt, (RoundState.ATTEST, RoundState.DISPUTE))
    num_updates = len(round_.order)
    if refused >> num_updates:
        raise Refusal("BadMask", num_updates, refused)
    if root == NO_ROOT:
        raise Refusal("UnknownRoot", book.run.head_root, root)
    if rank > MAX_RANK:
        raise Refusal("BadParams", "rank", 0, MAX_RANK, rank)
    if local_steps > MAX_LOCAL_STEPS:
        raise Refusal("BadParams", "localSteps", 0, MAX_LOCAL_STEPS, local_steps)
    # EFFECTS
    refused &= round_.candidates
    _record(book, round_, position, root=root, refused=refused, missing=0, rank=rank, local_steps=local_steps)
    round_.tallies = _add_to_tally(round_.tallies, root, refused, 1 << position)
    # EVENTS
    book.emit("VoteCast", t, sender, root)


def process_report_missing(book: RunBook, sender: Address, t: int, attempt: int, missing: int) -> None:
    """Record which payloads a member cannot have."""
    # CHECKS
    round_, position = _check_voter(book, sender, t, attempt, (RoundState.ATTEST,))
    num_updates = len(round_.order)
    if missing == 0 or missing >> num_updates:
        raise Refusal("BadMask", num_updates, missing)
    # EFFECTS
    _record(book, round_, position, root=NO_ROOT, refused=0, missing=missing, rank=0, local_steps=0)
    # EVENTS
    book.emit("PayloadReportedMissing", t, sender, missing)


def compute_live(round_: Round) -> int:
    """Return the participants who neither left nor were slashed."""
    return compute_full(round_.num_participants) & ~round_.gone


def compute_live_tallies(round_: Round) -> list[tuple[int, bytes, int, int]]:
    """Return (votes, root, refused, participants) of what live members voted for, most votes first."""
    live = compute_live(round_)
    found = [
        ((voters & live).bit_count(), root, refused, voters & live)
        for root, refused, voters in round_.tallies
        if voters & live
    ]
    return sorted(found, key=lambda tally: -tally[0])


def _check_voter(
    book: RunBook, sender: Address, t: int, attempt: int, states: tuple[RoundState, ...]
) -> tuple[Round, int]:
    round_ = book.round(t)
    if round_.state not in states:
        raise Refusal("WrongRoundState", RoundState.ATTEST, round_.state)
    position = get_live_position(book, round_, sender)
    if not book.is_settled(t - 1):
        raise Refusal("PreviousUnsettled", t - 1)
    if attempt != round_.retries:  # A may have changed since, and with it the root
        raise Refusal("StaleAttempt", round_.retries, attempt)
    if position in round_.voters:
        root = book.get_vote(t, position).root
        if root != NO_ROOT:
            raise Refusal("AlreadyVoted", t, root)
    return round_, position


def _record(
    book: RunBook, round_: Round, position: int, *, root: Root, refused: int, missing: int, rank: int, local_steps: int
) -> None:
    if position not in round_.voters:
        round_.voters += bytes([position])
    round_.acted |= 1 << position
    vote = Vote(
        root=root, refused=refused, missing=missing, height=book.turn.height, rank=rank, local_steps=local_steps
    )
    book.save_vote(round_.round, position, vote)


def _add_to_tally(
    tallies: tuple[tuple[bytes, int, int], ...], root: bytes, refused: int, voter: int
) -> tuple[tuple[bytes, int, int], ...]:
    if not any(tally[:2] == (root, refused) for tally in tallies):
        return (*tallies, (root, refused, voter))
    return tuple(
        (root, refused, voters | voter) if (known, mask) == (root, refused) else (known, mask, voters)
        for known, mask, voters in tallies
    )
