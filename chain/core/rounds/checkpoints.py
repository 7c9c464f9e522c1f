"""Checkpoints in parts, and what a certified one sets free (DESIGN 4.1, *Checkpoints*).

The chain cannot see whether a part's bytes are the state at ``R_t``; whoever pulls verifies against the root.
It records who was asked and what was stored.  Invariant: the blobs of the newest certified checkpoint, and all
payloads since, are pinned.
"""

from __future__ import annotations

from chain.core.abi.refusal import Refusal
from chain.core.contracts.storage.blobs import process_unpin
from chain.core.contracts.storage.certificates import StoredBlob
from chain.core.rounds.book import RunBook
from chain.core.rounds.escrow import check_funds, check_stored, process_purchase, process_return
from chain.core.rounds.membership import is_eligible
from chain.core.rounds.params import compute_num_rounds_total
from chain.core.rounds.records import NO_ROOT, Checkpoint, CheckpointState, RunState
from chain.core.rounds.seeds import compute_first_uploader
from chain.core.types import Address
from da.core.types import Tier

RELEASED_ROUNDS_A_BLOCK = 8
"""Rounds whose payloads are unpinned in one block."""


def open_checkpoint(book: RunBook, version: int) -> None:
    """Ask for the parts of a version that has just settled (or of genesis)."""
    run = book.run
    root = run.genesis_root if version == 0 else run.head_root
    book.save_checkpoint(
        Checkpoint(
            version=version,
            root=root,
            state=CheckpointState.OPEN,
            height=book.turn.height,
            uploaders=(run.owner,) if version == 0 else _draw_uploaders(book, version),
            blobs=(NO_ROOT,) * run.params.num_checkpoint_parts,
        )
    )
    run.open_checkpoints = (*run.open_checkpoints, version)


def get_uploader(book: RunBook, checkpoint: Checkpoint, part: int) -> Address:
    """Return who is asked for a part; the owner where nobody was eligible."""
    uploaders = checkpoint.uploaders
    return Address(uploaders[part % len(uploaders)]) if uploaders else book.run.owner


def check_part(book: RunBook, sender: Address, version: int, part: int) -> Checkpoint:
    """Do the checks that need no certificate."""
    run, params = book.run, book.run.params
    if version > run.num_settled:
        raise Refusal("UnknownVersion", run.run, version)
    checkpoint = book.get_checkpoint(version)
    if checkpoint is None:
        raise Refusal("NotCheckpointVersion", params.checkpoint_interval, version)
    if part >= params.num_checkpoint_parts:
        raise Refusal("UnknownPart", params.num_checkpoint_parts, part)
    if checkpoint.blobs[part] != NO_ROOT:
        raise Refusal("PartAlreadyStored", part, checkpoint.blobs[part])
    if checkpoint.state != CheckpointState.OPEN:
        raise Refusal("CheckpointSuperseded", version, run.certified_version)
    if version == 0:
        if sender != run.owner:
            raise Refusal("NotOwner", run.owner, sender)
        return checkpoint
    expected = get_uploader(book, checkpoint, part)
    if sender != run.owner and not is_eligible(book.get_member(sender)):
        raise Refusal("NotMember", run.run, sender)
    if sender != expected and book.turn.height < checkpoint.height + params.grace_blocks:
        raise Refusal("NotYourPart", expected, sender)
    return checkpoint


def process_part(book: RunBook, sender: Address, version: int, part: int, stored: StoredBlob) -> None:
    """Record a part whose certificate has been verified; the last one certifies the checkpoint."""
    # CHECKS
    checkpoint = check_part(book, sender, version, part)
    fee = check_stored(book, stored, Tier.HOT)
    check_funds(book.run, fee)
    # EFFECTS
    process_purchase(book, stored, fee)
    blobs = list(checkpoint.blobs)
    blobs[part] = stored.blob
    checkpoint.blobs = tuple(blobs)
    book.emit("CheckpointPartStored", version, part, stored.blob)
    if NO_ROOT not in blobs:
        _process_certified(book, checkpoint)
    book.save_checkpoint(checkpoint)


def process_releases(book: RunBook) -> bool:
    """Unpin payloads of rounds under the newest certified checkpoint, some rounds a block; say whether more wait."""
    run = book.run
    stop = min(run.certified_version, run.num_released + RELEASED_ROUNDS_A_BLOCK)
    for t in range(run.num_released, stop):
        for position in book.round(t).order:
            process_unpin(book.turn, book.get_update(t, position).blob)
    run.num_released = stop
    return stop < run.certified_version


def _process_certified(book: RunBook, checkpoint: Checkpoint) -> None:
    run, version = book.run, checkpoint.version
    checkpoint.state = CheckpointState.CERTIFIED
    checkpoint.height = book.turn.height
    older = [open_version for open_version in run.open_checkpoints if open_version < version]
    if run.certified_root != NO_ROOT:
        older.append(run.certified_version)
    for old_version in older:
        old = book.get_checkpoint(old_version)
        assert old is not None
        old.state = CheckpointState.SUPERSEDED
        for blob in old.blobs:
            if blob != NO_ROOT:
                process_unpin(book.turn, blob)
        book.save_checkpoint(old)
    run.open_checkpoints = tuple(v for v in run.open_checkpoints if v > version)
    run.certified_version, run.certified_root = version, checkpoint.root
    book.emit("CheckpointCertified", version, checkpoint.root)
    if run.state == RunState.CREATED:
        run.empty_since = book.turn.height
        run.state = RunState.WAITING
        book.emit("RunStateChanged", RunState.CREATED, RunState.WAITING)
    if run.state == RunState.FINISHED and version == compute_num_rounds_total(run.params):
        process_return(book)


def _draw_uploaders(book: RunBook, version: int) -> tuple[bytes, ...]:
    roster = book.roster
    if not roster:
        return ()
    first = compute_first_uploader(book.turn.seed, book.run.run, version, len(roster))
    turned = [*roster[first:], *roster[:first]]
    return tuple(turned[: book.run.params.num_checkpoint_parts])
