"""One round's transitions: OPEN, REVEAL, ATTEST, DISPUTE (the table of DESIGN 4.1, row by row).

``process_step`` makes at most one transition and says whether it did; ``compute_due`` says at which height the
next timer fires, 0 where only an event can move the round.  Both are run at the end of a block, never by a
call, so the order of the calls within a block decides nothing.
"""

from __future__ import annotations

from chain.core.rounds.bitmaps import compute_full, iterate_bits
from chain.core.rounds.book import RunBook
from chain.core.rounds.records import NO_ROOT, RefusalReason, Round, RoundState, UpdateFate, VoidReason
from chain.core.rounds.settling import process_final, process_void
from chain.core.rounds.voting import compute_live, compute_live_tallies

MAX_RETRIES = 2
"""Attempts after the first one, each with its own attest deadline."""
SMALL_ELECTORATE = 4
"""Below four voters, attestation survives crashes, not lies; one root of half of them may do after grace."""


def process_step(book: RunBook, round_: Round) -> bool:
    """Make the transition that is possible now, if any."""
    match round_.state:
        case RoundState.OPEN:
            return _step_open(book, round_)
        case RoundState.REVEAL:
            return _step_reveal(book, round_)
        case RoundState.ATTEST:
            return _step_attest(book, round_)
        case RoundState.DISPUTE:
            return _step_dispute(book, round_)
        case _:
            return False


def compute_due(book: RunBook, round_: Round) -> int:
    """Return the height of the next timer, 0 for none."""
    previous_settled = book.is_settled(round_.round - 1)
    params = round_.params
    match round_.state:
        case RoundState.OPEN:
            start = _get_clock_start(book, round_)
            if start is None:
                return 0
            due = start + params.round_blocks
            if not round_.committed:  # a void round waits for the one before
                return due if due > book.turn.height or previous_settled else 0
            return min(due, round_.grace_from + params.grace_blocks) if round_.grace_from else due
        case RoundState.REVEAL:
            due = round_.closed_height + params.reveal_blocks
            return due if due > book.turn.height or previous_settled else 0
        case RoundState.ATTEST if previous_settled:
            due = _get_attest_start(book, round_) + params.attest_blocks
            small = _get_small_quorum_height(book, round_)
            return due if small is None else min(due, small)
        case RoundState.DISPUTE:
            return round_.dispute_height + params.dispute_blocks
        case _:
            return 0


def _step_open(book: RunBook, round_: Round) -> bool:
    start = _get_clock_start(book, round_)
    if start is None:
        return False
    height, params = book.turn.height, round_.params
    is_over = height >= start + params.round_blocks
    live = compute_live(round_)
    if not round_.committed:
        if (is_over or not live) and book.is_settled(round_.round - 1):
            round_.closed_height = height
            process_void(book, round_, VoidReason.NO_COMMIT if live else VoidReason.NOBODY_LIVE)
            return True
        return False
    if not round_.grace_from and _are_two_thirds_in(book, round_, live):
        round_.grace_from = height
    is_grace_over = round_.grace_from > 0 and height >= round_.grace_from + params.grace_blocks
    if live & ~round_.committed and not is_grace_over and not is_over:
        return False
    round_.state = RoundState.REVEAL
    round_.closed_height = height
    round_.candidates = compute_full(len(round_.order))
    book.emit("RoundClosed", round_.round, len(round_.order))
    return True


def _step_reveal(book: RunBook, round_: Round) -> bool:
    if round_.params.is_sealed:
        is_over = book.turn.height >= round_.closed_height + round_.params.reveal_blocks
        if round_.revealed != round_.candidates and not is_over:
            return False
        if not round_.revealed:
            if book.is_settled(round_.round - 1):
                process_void(book, round_, VoidReason.NOT_REVEALED)
                return True
            return False
        round_.candidates = round_.revealed
    _enter_attest(book, round_)
    return True


def _step_attest(book: RunBook, round_: Round) -> bool:
    if not book.is_settled(round_.round - 1):
        return False
    electorate = compute_live(round_).bit_count()
    if electorate == 0:
        process_void(book, round_, VoidReason.NOBODY_LIVE)
        return True
    height = book.turn.height
    tallies = compute_live_tallies(round_)
    votes = tallies[0][0] if tallies else 0
    small = _get_small_quorum_height(book, round_)
    is_over = height >= _get_attest_start(book, round_) + round_.params.attest_blocks
    is_only_root = len(tallies) == 1
    missing = 0
    if is_over:
        reports = _get_reports(book, round_)
        missing = _find_missing(round_, reports, electorate)
        # A third of liars must not win by withholding a payload from the others, who can only report it.
        if electorate >= SMALL_ELECTORATE and (missing or len(reports) >= votes):
            is_only_root = False
    if (
        3 * votes > 2 * electorate
        or (small is not None and height >= small)
        or (is_over and is_only_root and 3 * votes >= electorate)
    ):
        _, root, refused, voters = tallies[0]
        process_final(book, round_, root, refused, voters, jailed=0)
        return True
    if not is_over:
        return False
    if len(tallies) > 1:
        round_.state = RoundState.DISPUTE
        round_.dispute_height = height
        book.emit("RoundDisputed", round_.round, len(tallies))
        return True
    if round_.retries >= MAX_RETRIES:
        process_void(book, round_, VoidReason.NO_QUORUM)
        return True
    _remove_missing(book, round_, missing)
    if not round_.candidates:
        process_void(book, round_, VoidReason.NO_PAYLOAD)
        return True
    round_.retries += 1
    _enter_attest(book, round_)
    return True


def _step_dispute(book: RunBook, round_: Round) -> bool:
    if book.turn.height < round_.dispute_height + round_.params.dispute_blocks:
        return False
    electorate = compute_live(round_).bit_count()
    tallies = compute_live_tallies(round_)
    if tallies and 2 * tallies[0][0] > electorate:
        _, root, refused, voters = tallies[0]
        minority = 0
        for _, _, _, others in tallies[1:]:
            minority |= others
        process_final(book, round_, root, refused, voters, jailed=minority)
    else:
        process_void(book, round_, VoidReason.DISPUTED)
    return True


def _enter_attest(book: RunBook, round_: Round) -> None:
    round_.state = RoundState.ATTEST
    round_.attest_height = book.turn.height
    round_.voters = b""
    round_.tallies = ()
    book.emit("RoundAttesting", round_.round, round_.retries)


def _get_clock_start(book: RunBook, round_: Round) -> int | None:
    """Return max(opened, t-1 closed), None while t-1 is OPEN."""
    previous = book.get_round(round_.round - 1)
    if previous is None:
        return round_.opened_height
    if previous.state == RoundState.OPEN:
        return None
    return max(round_.opened_height, previous.closed_height)


def _get_attest_start(book: RunBook, round_: Round) -> int:
    """Return max(entered, t-1 settled)."""
    previous = book.get_round(round_.round - 1)
    return max(round_.attest_height, previous.settled_height if previous is not None else 0)


def _are_two_thirds_in(book: RunBook, round_: Round, live: int) -> bool:
    accepted = set(book.last.accepted)
    expected = 0
    for position, worker in enumerate(book.get_participants(round_.round)):
        if worker in accepted:
            expected |= 1 << position
    expected = expected & live or live
    return 3 * (round_.committed & expected).bit_count() >= 2 * expected.bit_count()


def _get_small_quorum_height(book: RunBook, round_: Round) -> int | None:
    """Return from when a small electorate's only root may be FINAL, None where that rule doesn't apply.

    Fewer than four voters, one root of at least half of them, and everyone who voted last round and is still
    live has voted: then ``grace`` blocks later.
    """
    live = compute_live(round_)
    tallies = compute_live_tallies(round_)
    if live.bit_count() >= SMALL_ELECTORATE or len(tallies) != 1 or 2 * tallies[0][0] < live.bit_count():
        return None
    voted_last = set(book.last.voters)
    since = _get_attest_start(book, round_)
    participants = book.get_participants(round_.round)
    for position in iterate_bits(live):
        if participants[position] not in voted_last:
            continue
        if position not in round_.voters:
            return None
        since = max(since, book.get_vote(round_.round, position).height)
    return since + round_.params.grace_blocks


def _get_reports(book: RunBook, round_: Round) -> list[int]:
    """Return what each live member of this attempt that cannot vote says is missing."""
    live = compute_live(round_)
    votes = [book.get_vote(round_.round, position) for position in round_.voters if live >> position & 1]
    return [vote.missing for vote in votes if vote.root == NO_ROOT]


def _find_missing(round_: Round, reports: list[int], electorate: int) -> int:
    """Return the updates in A whose payload more than a third of E cannot have."""
    found = 0
    for index in iterate_bits(round_.candidates):
        if 3 * sum(mask >> index & 1 for mask in reports) > electorate:
            found |= 1 << index
    return found


def _remove_missing(book: RunBook, round_: Round, missing: int) -> None:
    """Take updates out of A, and say so at once, so that the next attempt's voters leave them out of the sum."""
    round_.candidates &= ~missing
    round_.missing |= missing
    for index in iterate_bits(missing):
        position = round_.order[index]
        update = book.get_update(round_.round, position)
        update.fate, update.reason = UpdateFate.REFUSED, RefusalReason.MISSING_PAYLOAD
        book.save_update(round_.round, position, update)
