"""Opening a round: its conditions, and what it freezes (DESIGN 4.1, row "-> OPEN(t)")."""

from __future__ import annotations

from chain.core.contracts.storage.blobs import process_unpin
from chain.core.contracts.storage.keys import get_epoch_state
from chain.core.rounds.book import RunBook
from chain.core.rounds.escrow import is_escrow_empty
from chain.core.rounds.membership import process_drop
from chain.core.rounds.params import compute_num_rounds_total, latch
from chain.core.rounds.records import NO_ROOT, MemberState, Round, RoundState, RunState
from chain.core.rounds.seeds import compute_data_seed
from chain.core.rounds.settling import set_run_state

MAX_INTERVALS_BACK = 2
"""The newest certified checkpoint is at most so many intervals behind a round that opens."""


def process_run_state(book: RunBook) -> bool:
    """Move between RUNNING and WAITING."""
    run = book.run
    if run.state not in (RunState.RUNNING, RunState.WAITING):
        return False
    is_waiting = run.num_eligible < run.pending.min_members or is_escrow_empty(book)
    wanted = RunState.WAITING if is_waiting else RunState.RUNNING
    if wanted == run.state:
        return False
    set_run_state(book, wanted)
    return True


def process_opening(book: RunBook) -> bool:
    """Open the next round if everything allows it."""
    run = book.run
    t = run.num_opened
    params = latch(run.params, run.pending, t)
    if (
        run.state != RunState.RUNNING
        or t >= compute_num_rounds_total(params)
        or not book.is_settled(t - 1 - params.overlap)
    ):
        run.gate_since = 0
        return False
    if t - run.certified_version > MAX_INTERVALS_BACK * params.checkpoint_interval:
        return _process_gate(book)
    run.gate_since = 0
    # EFFECTS
    _release_stale(book, t)
    if params.local_steps != run.params.local_steps:
        run.local_steps = params.local_steps
    run.params = run.pending = params
    participants = tuple(book.roster)
    run.num_opened = t + 1
    book.add_round(
        Round(
            round=t,
            state=RoundState.OPEN,
            local_steps=run.local_steps,
            rank=run.rank,
            base_version=run.num_settled,
            base_root=run.head_root,
            root=NO_ROOT,
            opened_height=book.turn.height,
            closed_height=0,
            attest_height=0,
            dispute_height=0,
            settled_height=0,
            due_height=0,
            grace_from=0,
            num_participants=len(participants),
            gone=0,
            committed=0,
            acted=0,
            order=b"",
            revealed=0,
            candidates=0,
            missing=0,
            voters=b"",
            tallies=(),
            retries=0,
            num_accepted=0,
            storage_epoch=get_epoch_state(book.turn.state).epoch,
            data_seed=compute_data_seed(book.turn.seed, run.run, t),
            params=params,
        ),
        participants,
    )
    for worker in participants:
        member = book.member(worker)
        if member.state == MemberState.READY:
            member.state = MemberState.ACTIVE
    # EVENTS
    book.emit("RoundOpened", t, run.head_root, len(participants))
    return True


def compute_gate_due(book: RunBook) -> int:
    """Return when members that did not say ``ready`` again are dropped, 0 while the gate is open."""
    run = book.run
    return run.gate_since + run.params.round_blocks if run.gate_since else 0


def _process_gate(book: RunBook) -> bool:
    run, height = book.run, book.turn.height
    if run.gate_since == 0:
        run.gate_since = height
        return False
    if height < compute_gate_due(book):
        return False
    silent = [worker for worker in book.roster if book.member(worker).ready_height < run.gate_since]
    run.gate_since = height
    for worker in silent:
        process_drop(book, book.member(worker))
    return bool(silent)


def _release_stale(book: RunBook, t: int) -> None:
    """Unpin the payloads of a reverted round whose index is used again."""
    stale = book.get_stale_round(t)
    if stale is not None:
        for position in stale.order:
            process_unpin(book.turn, book.get_update(t, position).blob)
