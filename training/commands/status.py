"""``trainer status``: did my last update count, and why (DESIGN 10)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from contracts.bindings.amounts import format_tokens
from contracts.bindings.client import ChainClient
from contracts.bindings.errors import ContractError
from contracts.bindings.keys import load_address
from contracts.bindings.option_needs import check_needs
from contracts.bindings.types import (
    Member,
    MemberState,
    RefusalReason,
    RoundInfo,
    RoundState,
    RunInfo,
    Update,
    UpdateFate,
)
from contracts.bindings.unlocking import ask_password
from training.commands.asking import fetch_loss_unit, fetch_recipe_rank, fetch_run
from training.commands.describing import describe_run
from training.commands.options import DEFAULT_CHAINS, ChainOption, JsonOption, RunOption
from training.commands.output import (
    format_bytes,
    format_hash,
    format_loss,
    format_name,
    print_json,
    print_pairs,
)
from training.commands.verifying import Verification, describe_verification, verify_status
from training.commands.void_rounds import fetch_void_rounds
from training.worker.errors import Fatal

LOOK_BACK_ROUNDS = 64
"""Rounds searched for the last update, newest first."""

REASONS = {
    RefusalReason.NONE: "no reason was given",
    RefusalReason.VOID_ROUND: "the round ended VOID: no quorum agreed on it; your progress stays in your weights",
    RefusalReason.MISSING_PAYLOAD: "more than a third of the members could not get its payload from the stores",
    RefusalReason.INVALID_PAYLOAD: "its payload did not validate; use the run's recipe and software version",
    RefusalReason.NOT_REVEALED: "its key was not revealed in time",
    RefusalReason.NOT_DRAWN: "more updates came than the run accepts, and this one was not drawn",
}
"""Why an update was refused, for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LastUpdate:
    """A worker's newest update."""

    round: int
    state: RoundState
    update: Update
    verdict: str
    """One line for people."""


def status(
    run: RunOption,
    chain: ChainOption = DEFAULT_CHAINS,
    key_file: Annotated[Path | None, typer.Option(help="Key of the worker asked about.")] = None,
    address: Annotated[str | None, typer.Option(help="Or its address.")] = None,
    verify: Annotated[bool, typer.Option(help="Prove it by the validators' signatures, trusting no node.")] = False,
    genesis: Annotated[
        Path | None, typer.Option(help="With --verify: the genesis.json to begin from; else the nodes' word.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Say how the run stands, and whether a worker's last update counted and why."""
    check_needs("--genesis", genesis, "--verify", verify)
    client = ChainClient(chain)
    worker = address or (load_address(key_file, ask_password) if key_file else None)
    info = fetch_run(client, run)
    if worker is None:
        verified = verify_status(chain, info, None, genesis=genesis) if verify else None
        if as_json:
            print_json(_describe_json(client, info) | ({"verified": verified} if verified else {}))
        else:
            _print_run(client, info)
            _print_verified(verified)
        return
    member = client.training.member(run, worker)
    if member.state is MemberState.NONE:
        raise Fatal(f"{worker} is no member of run {run}", next_step=f"trainer join --run {run} --key-file FILE")
    last = find_last_update(client, run, info.num_opened, worker)
    verified = verify_status(chain, info, member, genesis=genesis) if verify else None
    if as_json:
        document = _describe_json(client, info) | {"member": member, "last_update": last}
        print_json(document | ({"verified": verified} if verified else {}))
        return
    _print_verified(verified)
    _print_run(client, info)
    print_pairs(f"\nworker {worker}", describe_member(member, client.height()))
    if last is None:
        print_pairs("\nlast update", [("none", f"no update in the last {LOOK_BACK_ROUNDS} rounds that the node shows")])
        return
    update = last.update
    print_pairs(
        f"\nlast update: round {last.round}",
        [
            ("verdict", last.verdict),
            ("in block", str(update.height)),
            ("payload", f"{format_bytes(update.size_bytes)}, blob {format_hash(update.blob)}"),
            ("trained", describe_training(update, fetch_loss_unit(client, run))),
            ("paid", format_tokens(update.paid)),
        ],
    )


def find_last_update(client: ChainClient, run: int, num_opened: int, worker: str) -> LastUpdate | None:
    """Return a worker's newest update with a verdict, None where there is none among the newest rounds.

    A node that began from a snapshot shows no rounds that had left the state by then.
    """
    for index in range(num_opened - 1, max(-1, num_opened - 1 - LOOK_BACK_ROUNDS), -1):
        try:
            update = client.training.update(run, index, worker)
        except ContractError as error:
            if error.name != "RoundArchived":
                raise
            return None
        if update.fate is not UpdateFate.NONE:
            info = client.training.round(run, index)
            return LastUpdate(round=index, state=info.state, update=update, verdict=explain_update(update, info))
    return None


def explain_update(update: Update, info: RoundInfo) -> str:
    """Say in one line what has become of an update."""
    if update.fate is UpdateFate.ACCEPTED:
        others = info.num_accepted - 1
        company = f", with {others} other{'s' if others > 1 else ''}" if others else " (no other member sent one)"
        return f"counted{company}; the round is final since block {info.settled_height}"
    if update.fate is UpdateFate.REFUSED:
        return f"refused: {REASONS[update.reason]}"
    due, before = info.due_height, f"round {info.round - 1}"
    voting = f"members are voting ({info.num_votes} votes, attempt {info.retries + 1})"
    # What the chain's next timer does (chain/core/rounds/stepping.py); 0 is none: the round before holds this one.
    waiting = {
        RoundState.OPEN: (
            f"the round is still open, until block {due} at the latest; then the members vote",
            f"the round is still open, and its time runs from when {before} closes; then the members vote",
        ),
        RoundState.REVEAL: (
            f"keys are being revealed, until block {due} at the latest; then the members vote",
            f"keys are being revealed; it goes on when {before} has settled",
        ),
        RoundState.ATTEST: (
            f"{voting}, until block {due} at the latest; without a quorum they vote again",
            f"{voting}; it is decided after {before}, which has not settled yet",
        ),
        RoundState.DISPUTE: (
            f"members disagree about the outcome; decided by block {due} at the latest",
            "members disagree about the outcome",
        ),
    }
    said = waiting.get(info.state)
    return f"pending: {said[0 if due else 1] if said else format_name(info.state)}"


def describe_training(update: Update, loss_unit: str) -> str:
    """Say what an update was made from; the last F rounds have no inner steps, they only flush what is left."""
    if not update.tokens:
        return "no inner steps: a flush round, it sends what was left over"
    return f"{update.tokens:,} tokens, loss {format_loss(update.loss_micro)} {loss_unit}"


def describe_member(member: Member, height: int) -> list[tuple[str, str]]:
    """Return a member's figures, for people."""
    state = format_name(member.state)
    if member.state is MemberState.DROPPED:
        state += f" after {member.missed} missed rounds; may rejoin from block {member.rejoin_height} (now {height})"
    return [
        ("state", state),
        ("updates", f"{member.accepted} counted, {member.refused} refused"),
        ("missed", f"{member.missed} in a row, dropped {member.drops} times"),
        ("bond", format_tokens(member.bond)),
        ("earned", format_tokens(member.earned)),
    ]


def _describe_json(client: ChainClient, info: RunInfo) -> dict[str, Any]:
    height = client.height()
    return {"height": height, "run": info, "void_rounds": fetch_void_rounds(client, info, height)}


def _print_run(client: ChainClient, info: RunInfo) -> None:
    height = client.height()
    void = fetch_void_rounds(client, info, height)
    print_pairs(f"run {info.run} at block {height}", describe_run(info, fetch_recipe_rank(client, info.run), void))


def _print_verified(verified: Verification | None) -> None:
    if verified is not None:
        print_pairs("verified", describe_verification(verified))
        print()
