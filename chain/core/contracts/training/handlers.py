"""The functions of the Training contract that change state, from decoded arguments to the round machine.

A handler opens the run's book, lets the machine check and change it, and touches it: the transitions follow
at the end of the block.  Invariant: identity is the sender, never an argument.
"""

from __future__ import annotations

from typing import Any

from chain.core.abi.refusal import Refusal
from chain.core.contracts.dispatch import Call, Handler
from chain.core.contracts.gas import ALLOWED_WORKER_GAS, STORED_BYTE_GAS
from chain.core.contracts.storage.certificates import process_certificate
from chain.core.contracts.training.views import TRAINING_VIEWS
from chain.core.rounds.book import RunBook
from chain.core.rounds.checkpoints import check_part, process_part
from chain.core.rounds.committing import check_commit, process_commit, process_reveal
from chain.core.rounds.escrow import process_reclaim
from chain.core.rounds.membership import process_join, process_leave, process_ready, process_withdraw_bond
from chain.core.rounds.records import RunParams
from chain.core.rounds.running import (
    check_owner,
    process_change,
    process_create,
    process_evaluation,
    process_fund,
    process_pause,
    process_resume,
)
from chain.core.rounds.voting import process_attest, process_report_missing
from chain.core.types import Address, Root

_PARAM_NAMES = tuple(RunParams.__dataclass_fields__)


def _process_create_run(call: Call, params: tuple[Any, ...], recipe: bytes, root: bytes) -> tuple[object, ...]:
    chosen = _read_params(params)
    if chosen.is_sealed:
        raise Refusal("SealedNotSupported")
    call.meter.charge(STORED_BYTE_GAS * len(recipe))
    book = process_create(call.turn, call.sender, chosen, recipe, Root(root), call.value)
    book.touch()
    return (book.run.run,)


def _process_fund(call: Call, run: int) -> None:
    book = RunBook(call.turn, run)
    process_fund(book, call.sender, call.value)
    book.touch()


def _process_reclaim(call: Call, run: int) -> None:
    book = RunBook(call.turn, run)
    process_reclaim(book, call.sender)
    book.touch()


def _process_allow(call: Call, run: int, workers: tuple[bytes, ...], is_allowed: bool) -> None:
    book = RunBook(call.turn, run)
    check_owner(book, call.sender)
    call.meter.charge(ALLOWED_WORKER_GAS * len(workers))
    for worker in workers:
        book.set_allowed(Address(worker), is_allowed)


def _process_set_params(call: Call, run: int, params: tuple[Any, ...]) -> None:
    book = RunBook(call.turn, run)
    process_change(book, call.sender, _read_params(params))
    book.touch()


def _process_pause(call: Call, run: int) -> None:
    book = RunBook(call.turn, run)
    process_pause(book, call.sender)
    book.touch()


def _process_resume(call: Call, run: int) -> None:
    book = RunBook(call.turn, run)
    process_resume(book, call.sender)
    book.touch()


def _process_join(call: Call, run: int, recipe_digest: bytes, payout: bytes, client: str) -> None:
    book = RunBook(call.turn, run)
    process_join(book, call.sender, recipe_digest, Address(payout), client, call.value)
    book.touch()


def _process_ready(call: Call, run: int, root: bytes) -> None:
    book = RunBook(call.turn, run)
    process_ready(book, call.sender, root)
    book.touch()


def _process_leave(call: Call, run: int) -> None:
    book = RunBook(call.turn, run)
    process_leave(book, call.sender)
    book.touch()


def _process_withdraw_bond(call: Call, run: int) -> None:
    book = RunBook(call.turn, run)
    process_withdraw_bond(book, call.sender)
    book.touch()


def _process_commit(
    call: Call, run: int, t: int, base_root: bytes, digest: bytes, certificate: bytes, tokens: int, loss_micro: int
) -> None:
    book = RunBook(call.turn, run)
    check_commit(book, call.sender, t, base_root)
    stored = process_certificate(call.turn, call.meter, certificate)
    process_commit(book, call.sender, t, base_root, digest, stored, tokens, loss_micro)
    book.touch()


def _process_reveal(call: Call, run: int, t: int, key: bytes) -> None:
    book = RunBook(call.turn, run)
    process_reveal(book, call.sender, t, key)
    book.touch()


def _process_attest(
    call: Call, run: int, t: int, attempt: int, root: bytes, refused: int, rank: int, local_steps: int
) -> None:
    book = RunBook(call.turn, run)
    process_attest(book, call.sender, t, attempt, Root(root), refused, rank, local_steps)
    book.touch()


def _process_report_missing(call: Call, run: int, t: int, attempt: int, missing: int) -> None:
    book = RunBook(call.turn, run)
    process_report_missing(book, call.sender, t, attempt, missing)
    book.touch()


def _process_checkpoint(call: Call, run: int, version: int, part: int, certificate: bytes) -> None:
    book = RunBook(call.turn, run)
    check_part(book, call.sender, version, part)
    stored = process_certificate(call.turn, call.meter, certificate)
    process_part(book, call.sender, version, part, stored)
    book.touch()


def _process_record_evaluation(call: Call, run: int, version: int, loss_micro: int) -> None:
    book = RunBook(call.turn, run)
    process_evaluation(book, call.sender, version, loss_micro)


TRAINING_HANDLERS: dict[str, Handler] = {
    "createRun": _process_create_run,
    "fund": _process_fund,
    "reclaim": _process_reclaim,
    "allow": _process_allow,
    "setParams": _process_set_params,
    "pause": _process_pause,
    "resume": _process_resume,
    "join": _process_join,
    "ready": _process_ready,
    "leave": _process_leave,
    "withdrawBond": _process_withdraw_bond,
    "commit": _process_commit,
    "reveal": _process_reveal,
    "attest": _process_attest,
    "reportMissing": _process_report_missing,
    "checkpoint": _process_checkpoint,
    "recordEvaluation": _process_record_evaluation,
    **TRAINING_VIEWS,
}
"""By function name."""


def _read_params(values: tuple[Any, ...]) -> RunParams:
    return RunParams(**dict(zip(_PARAM_NAMES, values, strict=True)))
