"""Timers of all runs, found by an index on due height; bounded work a block (DESIGN 4.1).

A call writes what it was told and makes its run due; everything that follows happens here, at the end of the
block.  Work a block is at most ``MAX_RUNS_A_BLOCK`` runs of ``MAX_STEPS`` transitions; what is left keeps its
place and comes first in the next block.
"""

from __future__ import annotations

from chain.core.rounds.archive import process_archive
from chain.core.rounds.book import RunBook, get_due_runs
from chain.core.rounds.checkpoints import process_releases
from chain.core.rounds.escrow import note_idle
from chain.core.rounds.opening import compute_gate_due, process_opening, process_run_state
from chain.core.rounds.records import RoundState
from chain.core.rounds.stepping import compute_due, process_step
from chain.core.turn import Turn

MAX_RUNS_A_BLOCK = 64
"""About 0.1 s of work in the worst case."""
MAX_STEPS = 16
"""Transitions of one run in one block; two rounds need at most six."""


def process_rounds_block_end(turn: Turn) -> None:
    """Move every run that is due."""
    for run in get_due_runs(turn.state, turn.height, MAX_RUNS_A_BLOCK):
        process_run(RunBook(turn, run))


def process_run(book: RunBook) -> None:
    """Make all transitions that are possible now, and set the next due height."""
    has_more = True
    for _ in range(MAX_STEPS):
        has_more = _process_one(book)
        if not has_more:
            break
    has_more |= process_releases(book)
    has_more |= process_archive(book)
    note_idle(book)
    next_height = book.turn.height + 1
    due = [next_height] if has_more else []
    for round_ in book.get_unsettled():
        round_.due_height = compute_due(book, round_)
        due.append(round_.due_height)
    due.append(compute_gate_due(book))
    waiting = [max(height, next_height) for height in due if height]
    book.save(due_height=min(waiting, default=0))


def _process_one(book: RunBook) -> bool:
    for round_ in book.get_unsettled():
        if process_step(book, round_):
            if round_.state in (RoundState.FINAL, RoundState.VOID):
                round_.due_height = 0
            return True
    return process_run_state(book) or process_opening(book)
