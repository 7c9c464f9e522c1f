"""The views of the Training contract, from decoded arguments to ABI values.

``run``, ``round``, ``update``, ``member`` and ``checkpointAt`` answer zeros (state 0: none) for what does not
exist yet; an unknown run is refused everywhere but in ``run``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple

from chain.core.abi.refusal import Refusal
from chain.core.accumulator import compute_root
from chain.core.contracts.dispatch import Call, Handler
from chain.core.contracts.gas import LISTED_RECORD_GAS
from chain.core.rounds.archive import decode_archived, is_archived_record
from chain.core.rounds.book import RunBook, get_num_runs
from chain.core.rounds.checkpoints import get_uploader
from chain.core.rounds.params import compute_num_rounds_total
from chain.core.rounds.records import NO_ROOT, Checkpoint, Member, Round, Run, Update
from chain.core.types import Address

MAX_EVALUATIONS_A_CALL = 256
"""The ABI promises it."""

_WINDOW_ROUNDS = 256
"""Versions that ``evaluations`` looks at in one step, each charged like a record."""
_NO_ADDRESS = bytes(20)
_NO_PARAMS = (0,) * 16 + (False, False, 0, 0)
_NO_RUN = (0, _NO_ADDRESS, 0, NO_ROOT, NO_ROOT, 0, NO_ROOT, 0, 0, 0, 0, 0, 0, 0, NO_ROOT, 0, 0, 0, 0, 0, 0, _NO_PARAMS)
_NO_UPDATE = (NO_ROOT, NO_ROOT, 0, 0, 0, 0, 0, 0, 0)


def _view_num_runs(call: Call) -> tuple[object, ...]:
    return (get_num_runs(call.turn.state),)


def _view_run(call: Call, run: int) -> tuple[object, ...]:
    if not 1 <= run <= get_num_runs(call.turn.state):
        return (_NO_RUN,)
    return (_run_values(RunBook(call.turn, run).run),)


def _view_recipe(call: Call, run: int) -> tuple[object, ...]:
    return (RunBook(call.turn, run).get_recipe(),)


def _view_round(call: Call, run: int, t: int) -> tuple[object, ...]:
    book = RunBook(call.turn, run)
    round_ = book.get_round(t)
    return (_round_values(book.run, round_) if round_ is not None else _no_round(t),)


def _view_participants(call: Call, run: int, t: int) -> tuple[object, ...]:
    book = RunBook(call.turn, run)
    book.round(t)
    return (list(book.get_participants(t)),)


def _view_update(call: Call, run: int, t: int, worker: bytes) -> tuple[object, ...]:
    book = RunBook(call.turn, run)
    round_ = book.get_round(t)
    position = book.get_position(t, Address(worker)) if round_ is not None else None
    if round_ is None or position is None or not round_.committed >> position & 1:
        return ((worker, *_NO_UPDATE),)
    return ((worker, *_update_values(book.get_update(t, position))),)


def _view_updates(call: Call, run: int, t: int) -> tuple[object, ...]:
    book = RunBook(call.turn, run)
    round_ = book.round(t)
    call.meter.charge(LISTED_RECORD_GAS * len(round_.order))
    workers = book.get_participants(t)
    return ([(workers[p], *_update_values(book.get_update(t, p))) for p in round_.order],)


def _view_votes(call: Call, run: int, t: int) -> tuple[object, ...]:
    book = RunBook(call.turn, run)
    round_ = book.round(t)
    call.meter.charge(LISTED_RECORD_GAS * len(round_.voters))
    workers = book.get_participants(t)
    votes = [(workers[position], book.get_vote(t, position)) for position in round_.voters]
    return ([(worker, vote.root, vote.refused, vote.missing, vote.height) for worker, vote in votes],)


def _view_archive(call: Call, run: int) -> tuple[object, ...]:
    accumulator = RunBook(call.turn, run).get_accumulator()
    return (accumulator.length, compute_root(accumulator), list(accumulator.peaks))


def _view_archived_round(call: Call, run: int, t: int, record: bytes, siblings: Sequence[bytes]) -> tuple[object, ...]:
    book = RunBook(call.turn, run)
    accumulator = book.get_accumulator()
    if not is_archived_record(accumulator, t, record, siblings):
        raise Refusal("BadArchiveProof", run, t, accumulator.length)
    archived = decode_archived(record)
    call.meter.charge(LISTED_RECORD_GAS * (1 + len(archived.updates) + len(archived.votes)))
    updates = [(worker, *_update_values(update)) for worker, update in archived.updates]
    return (_round_values(book.run, archived.round), updates)


def _view_root(call: Call, run: int, version: int) -> tuple[object, ...]:
    book = RunBook(call.turn, run)
    root = book.get_root(version)
    if root is None and version < book.run.num_archived:
        raise Refusal("RoundArchived", run, version, book.run.num_archived)
    if root is None:
        raise Refusal("UnknownVersion", run, version)
    return (root,)


def _view_member(call: Call, run: int, worker: bytes) -> tuple[object, ...]:
    member = RunBook(call.turn, run).get_member(Address(worker))
    if member is None:
        return ((worker, _NO_ADDRESS, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, ""),)
    return (_member_values(member),)


def _view_members(call: Call, run: int) -> tuple[object, ...]:
    book = RunBook(call.turn, run)
    call.meter.charge(LISTED_RECORD_GAS * book.run.num_members)
    return ([_member_values(member) for member in book.get_members()],)


def _view_is_allowed(call: Call, run: int, worker: bytes) -> tuple[object, ...]:
    book = RunBook(call.turn, run)
    return (not book.run.params.is_allow_listed or book.is_allowed(Address(worker)),)


def _view_checkpoint_at(call: Call, run: int, version: int) -> tuple[object, ...]:
    checkpoint = RunBook(call.turn, run).get_checkpoint(version)
    return (_checkpoint_values(checkpoint) if checkpoint is not None else (version, NO_ROOT, 0, 0, []),)


def _view_checkpoint_part_of(call: Call, run: int, version: int) -> tuple[object, ...]:
    book = RunBook(call.turn, run)
    checkpoint = book.get_checkpoint(version)
    if checkpoint is None:
        raise Refusal("UnknownVersion", run, version)
    return ([get_uploader(book, checkpoint, part) for part in range(len(checkpoint.blobs))],)


def _view_evaluations(call: Call, run: int, start: int, count: int) -> tuple[object, ...]:
    book = RunBook(call.turn, run)
    stop = book.run.num_settled + 1
    count = min(count, MAX_EVALUATIONS_A_CALL)
    found: list[tuple[object, ...]] = []
    for window in range(start, stop, _WINDOW_ROUNDS):
        call.meter.charge(LISTED_RECORD_GAS)
        for version in book.iterate_evaluated(window, min(window + _WINDOW_ROUNDS, stop)):
            evaluation = book.get_evaluation(version)
            if evaluation is not None and len(found) < count:
                call.meter.charge(LISTED_RECORD_GAS)
                found.append((version, evaluation.loss_micro, evaluation.by, evaluation.height))
        if len(found) >= count:
            break
    return (found,)


TRAINING_VIEWS: dict[str, Handler] = {
    "numRuns": _view_num_runs,
    "run": _view_run,
    "recipe": _view_recipe,
    "round": _view_round,
    "participants": _view_participants,
    "update": _view_update,
    "updates": _view_updates,
    "votes": _view_votes,
    "root": _view_root,
    "archive": _view_archive,
    "archivedRound": _view_archived_round,
    "member": _view_member,
    "members": _view_members,
    "isAllowed": _view_is_allowed,
    "checkpointAt": _view_checkpoint_at,
    "checkpointPartOf": _view_checkpoint_part_of,
    "evaluations": _view_evaluations,
}
"""By function name."""


def _run_values(run: Run) -> tuple[object, ...]:
    return (
        run.run,
        run.owner,
        int(run.state),
        run.recipe_digest,
        run.genesis_root,
        run.num_settled,
        run.head_root,
        run.num_opened,
        run.num_settled,
        compute_num_rounds_total(run.params),
        run.num_joined,
        run.num_eligible,
        run.disputes_in_row,
        run.certified_version,
        run.certified_root,
        run.escrow,
        run.paid_rewards,
        run.paid_storage,
        run.created_height,
        run.rank,
        run.local_steps,
        astuple(run.params),
    )


def _round_values(run: Run, round_: Round) -> tuple[object, ...]:
    return (
        round_.round,
        int(round_.state),
        round_.round % run.params.num_fragments,
        round_.local_steps,
        round_.rank,
        round_.base_version,
        round_.base_root,
        round_.root,
        round_.opened_height,
        round_.closed_height,
        round_.attest_height,
        round_.settled_height,
        round_.due_height,
        round_.num_participants,
        len(round_.order),
        round_.num_accepted,
        len(round_.voters),
        round_.retries,
        round_.storage_epoch,
        round_.data_seed,
    )


def _no_round(t: int) -> tuple[object, ...]:
    return (t, 0, 0, 0, 0, 0, NO_ROOT, NO_ROOT, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, NO_ROOT)


def _update_values(update: Update) -> tuple[object, ...]:
    return (
        update.digest,
        update.blob,
        update.size_bytes,
        update.tokens,
        update.loss_micro,
        int(update.fate),
        int(update.reason),
        update.height,
        update.paid,
    )


def _member_values(member: Member) -> tuple[object, ...]:
    return (
        member.worker,
        member.payout,
        int(member.state),
        member.bond,
        member.joined_height,
        member.rejoin_height,
        member.bond_unlock_height,
        member.missed,
        member.drops,
        member.accepted,
        member.refused,
        member.tokens,
        member.earned,
        member.last_round,
        member.client,
    )


def _checkpoint_values(checkpoint: Checkpoint) -> tuple[object, ...]:
    return (
        checkpoint.version,
        checkpoint.root,
        int(checkpoint.state),
        checkpoint.height,
        list(checkpoint.blobs),
    )
