"""The last resort: rounds undone back to the newest certified checkpoint, in the open (DESIGN 4.1).

When nobody has been eligible for T_recover and a member shows the checkpoint's root instead of a later one,
nobody can replay to the head; the run goes on from the checkpoint.  Whoever *can* replay shows a root after
the checkpoint, and nothing is undone.  Pay is not taken back, and a reverted round's payloads stay pinned
until its index is opened again.
"""

from __future__ import annotations

from chain.core.contracts.storage.blobs import process_unpin
from chain.core.rounds.book import RunBook
from chain.core.rounds.records import NO_ROOT, RunState


def should_revert(book: RunBook, root: bytes) -> bool:
    """Whether showing this root now undoes rounds."""
    run = book.run
    return (
        root == run.certified_root
        and root != run.head_root
        and run.certified_version < run.num_settled == run.num_opened
        and run.state != RunState.FINISHED
        and run.empty_since > 0
        and book.turn.height >= run.empty_since + run.params.recover_blocks
    )


def process_revert(book: RunBook) -> None:
    """Go back to the newest certified checkpoint."""
    run = book.run
    old_version = run.num_settled
    for version in run.open_checkpoints:
        checkpoint = book.get_checkpoint(version)
        assert checkpoint is not None
        for blob in checkpoint.blobs:
            if blob != NO_ROOT:
                process_unpin(book.turn, blob)
        book.delete_checkpoint(version)
    run.open_checkpoints = ()
    run.num_opened = run.num_settled = run.certified_version
    run.head_root = run.certified_root
    run.disputes_in_row = 0
    run.gate_since = 0
    book.last.accepted = book.last.voters = ()
    book.emit("RunReverted", old_version, run.certified_version)
