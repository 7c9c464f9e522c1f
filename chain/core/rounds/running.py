"""Runs: create, fund, allow, change, pause, resume; evaluations (DESIGN 4.1)."""

from __future__ import annotations

from eth_hash.auto import keccak

from chain.core.abi.refusal import Refusal
from chain.core.contracts.storage.keys import get_tiers
from chain.core.rounds.book import TRAINING, RunBook, get_num_runs, save_new_run
from chain.core.rounds.checkpoints import open_checkpoint
from chain.core.rounds.membership import is_eligible, is_present
from chain.core.rounds.params import check_change, check_params
from chain.core.rounds.records import NO_ROOT, Evaluation, Run, RunParams, RunState
from chain.core.rounds.settling import set_run_state
from chain.core.turn import Turn
from chain.core.types import Address, Root

MAX_LOSS_MICRO = 100_000_000
"""Micronats: 100 nats a token, nine times what guessing among 100,000 tokens costs."""

MAX_RECIPE_BYTES = 65_536
"""A recipe is a page of TOML; this is a thousand times one line."""


def process_create(turn: Turn, owner: Address, params: RunParams, recipe: bytes, root: Root, value: int) -> RunBook:
    """Create a run whose escrow has been paid; it runs once genesis is certified."""
    # CHECKS
    check_params(params, get_tiers(turn.state))
    if len(recipe) > MAX_RECIPE_BYTES:
        raise Refusal("RecipeTooLarge", MAX_RECIPE_BYTES, len(recipe))
    if root == NO_ROOT:
        raise Refusal("BadParams", "genesisRoot", 1, 2**256 - 1, 0)
    # EFFECTS
    run = get_num_runs(turn.state) + 1
    save_new_run(turn, _new_run(run, owner, params, recipe, root, value, turn.height), recipe)
    book = RunBook(turn, run)
    book.set_root(0, root)
    # EVENTS
    turn.emit(TRAINING, "RunCreated", run, owner, root)
    if value:
        book.emit("RunFunded", owner, value)
    open_checkpoint(book, 0)
    return book


def check_owner(book: RunBook, sender: Address) -> None:
    """Refuse anybody but the run's owner."""
    if sender != book.run.owner:
        raise Refusal("NotOwner", book.run.owner, sender)


def process_fund(book: RunBook, sender: Address, value: int) -> None:
    """Add to the escrow."""
    if book.run.state == RunState.FINISHED:
        raise Refusal("WrongRunState", RunState.RUNNING, book.run.state)
    if value == 0:
        raise Refusal("EscrowTooSmall", 1, 0)
    book.run.escrow += value
    book.emit("RunFunded", sender, value)


def process_change(book: RunBook, sender: Address, params: RunParams) -> None:
    """Change parameters from the next opening on."""
    check_owner(book, sender)
    run = book.run
    if run.state == RunState.FINISHED:
        raise Refusal("WrongRunState", RunState.RUNNING, run.state)
    check_params(params, get_tiers(book.turn.state))
    check_change(run.params, params, run.num_opened)
    run.pending = params
    book.emit("ParamsChanged", run.num_opened)


def process_pause(book: RunBook, sender: Address) -> None:
    """Open no further round."""
    check_owner(book, sender)
    if book.run.state not in (RunState.RUNNING, RunState.WAITING):
        raise Refusal("WrongRunState", RunState.RUNNING, book.run.state)
    set_run_state(book, RunState.PAUSED)


def process_resume(book: RunBook, sender: Address) -> None:
    """Open rounds again."""
    check_owner(book, sender)
    if book.run.state != RunState.PAUSED:
        raise Refusal("WrongRunState", RunState.PAUSED, book.run.state)
    book.run.disputes_in_row = 0
    set_run_state(book, RunState.WAITING)  # RUNNING at the end of this block, if it can


def process_evaluation(book: RunBook, sender: Address, version: int, loss_micro: int) -> None:
    """Record a held-out loss: a member's word, by one who holds the state; the first one of a version stays."""
    member = book.get_member(sender)
    if not is_present(member):
        raise Refusal("NotMember", book.run.run, sender)
    if not is_eligible(member):
        raise Refusal("NotEligible", version, sender)
    if not 0 < loss_micro <= MAX_LOSS_MICRO:
        raise Refusal("BadParams", "lossMicro", 1, MAX_LOSS_MICRO, loss_micro)
    root = book.get_root(version)
    if root is None:
        raise Refusal("UnknownVersion", book.run.run, version)
    known = book.get_evaluation(version)
    if known is not None:
        raise Refusal("AlreadyEvaluated", version, known.loss_micro)
    evaluation = Evaluation(root=root, loss_micro=loss_micro, by=sender, height=book.turn.height)
    book.save_evaluation(version, evaluation)
    book.emit("EvaluationRecorded", version, loss_micro)


def _new_run(run: int, owner: Address, params: RunParams, recipe: bytes, root: Root, value: int, height: int) -> Run:
    return Run(
        run=run,
        owner=owner,
        state=RunState.CREATED,
        recipe_digest=bytes(keccak(recipe)),
        genesis_root=root,
        head_root=root,
        num_opened=0,
        num_settled=0,
        num_members=0,
        num_joined=0,
        num_eligible=0,
        disputes_in_row=0,
        certified_version=0,
        certified_root=NO_ROOT,
        open_checkpoints=(),
        num_released=0,
        num_archived=0,
        escrow=value,
        reserved=0,
        largest_fee=0,
        paid_rewards=0,
        paid_storage=0,
        created_height=height,
        empty_since=0,
        gate_since=0,
        idle_since=height,
        rank=0,
        local_steps=params.local_steps,
        due_height=0,
        params=params,
        pending=params,
    )
