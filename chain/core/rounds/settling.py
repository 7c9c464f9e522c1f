"""Settlement: a round becomes FINAL or VOID (DESIGN 4.1).

Invariants: rounds settle in order; each update gets one fate; every round leads to a new version; what was
reserved for a round's updates is paid or freed.
"""

from __future__ import annotations

from collections.abc import Sequence

from chain.core.rounds.bitmaps import iterate_bits
from chain.core.rounds.book import RunBook
from chain.core.rounds.checkpoints import open_checkpoint
from chain.core.rounds.escrow import process_reward
from chain.core.rounds.membership import MAX_MISSED, process_drop
from chain.core.rounds.params import compute_num_rounds_total
from chain.core.rounds.records import (
    MemberState,
    RefusalReason,
    Round,
    RoundState,
    RunState,
    UpdateFate,
    VoidReason,
)
from chain.core.types import Root

MAX_DISPUTES_IN_ROW = 3
"""Rounds voided by dispute, with none FINAL between them, that pause a run."""
PACE_DIVISOR = 10
"""Rank and H move at most a tenth a round."""
_LARGEST_U64 = 2**64 - 1


def process_final(book: RunBook, round_: Round, root: bytes, refused: int, voters: int, jailed: int) -> None:
    """Count A less the refused updates, pay them, and move rank and H."""
    round_.state = RoundState.FINAL
    round_.root = Root(root)
    counted = round_.candidates & ~refused
    accepted = _process_fates(book, round_, counted, RefusalReason.INVALID_PAYLOAD)
    round_.num_accepted = len(accepted)
    book.last.accepted = tuple(accepted)
    book.run.disputes_in_row = 0
    _process_proposals(book, round_, voters)
    book.emit("RoundFinalised", round_.round, root, round_.num_accepted)
    _process_settled(book, round_, jailed)


def process_void(book: RunBook, round_: Round, reason: VoidReason) -> None:
    """Leave the agreed state as it was; every update is refused."""
    round_.state = RoundState.VOID
    round_.root = book.run.head_root
    _process_fates(book, round_, 0, RefusalReason.VOID_ROUND)
    book.emit("RoundVoided", round_.round, reason)
    if reason == VoidReason.DISPUTED:
        book.run.disputes_in_row += 1
        if book.run.disputes_in_row >= MAX_DISPUTES_IN_ROW and book.run.state in (RunState.RUNNING, RunState.WAITING):
            set_run_state(book, RunState.PAUSED)
    _process_settled(book, round_, jailed=0)


def set_run_state(book: RunBook, state: RunState) -> None:
    """Change a run's state, with its event."""
    previous = book.run.state
    if state == previous:
        return
    book.run.state = state
    book.emit("RunStateChanged", previous, state)


def compute_median_step(current: int, proposals: Sequence[int]) -> int:
    """Return the lower median of the proposals, at most a tenth (and at least one) away from ``current``.

    ``compute_median_step(100, [50, 200, 300])`` is 110.  Without a current value the median itself is taken.
    """
    if not proposals:
        return current
    median = sorted(proposals)[(len(proposals) - 1) // 2]
    if current == 0:
        return median
    reach = max(1, current // PACE_DIVISOR)
    return max(1, min(max(median, current - reach), current + reach))


def _process_fates(book: RunBook, round_: Round, counted: int, default: RefusalReason) -> list[bytes]:
    t = round_.round
    participants = book.get_participants(t)
    reward = round_.params.reward_per_update
    accepted: list[bytes] = []
    for index, position in enumerate(round_.order):
        update = book.get_update(t, position)
        worker = participants[position]
        member = book.member(worker)
        book.run.reserved -= reward
        if counted >> index & 1:
            update.fate, update.paid = UpdateFate.ACCEPTED, reward
            member.accepted += 1
            member.tokens = min(member.tokens + update.tokens, _LARGEST_U64)
            accepted.append(worker)
            if reward:
                process_reward(book, member.payout, reward)
                member.earned += reward
                book.emit("RewardPaid", t, worker, reward)
        else:
            update.fate, update.reason = UpdateFate.REFUSED, _get_reason(round_, index, default)
            member.refused += 1
            book.emit("UpdateRefused", t, worker, update.reason)
        book.save_update(t, position, update)
    return accepted


def _get_reason(round_: Round, index: int, default: RefusalReason) -> RefusalReason:
    if round_.missing >> index & 1:
        return RefusalReason.MISSING_PAYLOAD
    if round_.params.is_sealed and not round_.revealed >> index & 1:
        return RefusalReason.NOT_REVEALED
    return default


def _process_proposals(book: RunBook, round_: Round, voters: int) -> None:
    votes = [book.get_vote(round_.round, position) for position in iterate_bits(voters)]
    run = book.run
    run.rank = compute_median_step(run.rank, [vote.rank for vote in votes if vote.rank])
    run.local_steps = compute_median_step(run.local_steps, [vote.local_steps for vote in votes if vote.local_steps])


def _process_settled(book: RunBook, round_: Round, jailed: int) -> None:
    run, height, t = book.run, book.turn.height, round_.round
    assert t == run.num_settled, "rounds settle in order"
    round_.settled_height = height
    run.num_settled = t + 1
    run.head_root = round_.root
    book.set_root(t + 1, round_.root)
    participants = book.get_participants(t)
    book.last.voters = tuple(participants[position] for position in round_.voters)
    for position, worker in enumerate(participants):
        member = book.member(worker)
        if round_.gone >> position & 1:
            if member.state == MemberState.LEFT:
                member.bond_unlock_height = height + run.params.lock_blocks
                for later in book.get_unsettled():  # still in one: its settlement sets the height again
                    if book.get_position(later.round, worker) is not None:
                        member.bond_unlock_height = _LARGEST_U64
            continue
        member.missed = 0 if round_.acted >> position & 1 else member.missed + 1
        if member.missed >= MAX_MISSED or jailed >> position & 1:
            process_drop(book, member)
    if run.num_settled % run.params.checkpoint_interval == 0 or _is_end(book):
        open_checkpoint(book, run.num_settled)
    if _is_end(book):
        set_run_state(book, RunState.FINISHED)


def _is_end(book: RunBook) -> bool:
    return book.run.num_settled == compute_num_rounds_total(book.run.params)
