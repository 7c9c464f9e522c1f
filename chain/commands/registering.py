"""``chain-node register-validator`` and ``leave-validator``: into the set with a bond, and out of it again."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from chain.commands.options import DEFAULT_HOME, Home, Json
from chain.home import load_listening, sign_registration
from chain.registering import NotRegistered, Registration, check_chain, plan_registration
from chain.supervisor import fetch_status
from contracts.bindings.amounts import format_tokens, parse_tokens
from contracts.bindings.client import ChainClient
from contracts.bindings.devnet import CHAIN_VARIABLE, DEFAULT_CHAINS, choose_chains
from contracts.bindings.keys import address_of
from contracts.bindings.sender import Sender
from contracts.bindings.unlocking import unlock_key

KeyFile = Annotated[Path, typer.Option(help="Key of the account that holds bond and fees, see `trainer keys new`.")]
Chain = Annotated[
    list[str],
    typer.Option(
        envvar=CHAIN_VARIABLE,
        callback=choose_chains,
        help="JSON-RPC URL; give several to survive one being down. Without it the devnet that runs here.",
    ),
]


def register_validator(
    key_file: KeyFile,
    home: Home = DEFAULT_HOME,
    chain: Chain = DEFAULT_CHAINS,
    bond: Annotated[str, typer.Option(help="Tokens sent as bond; by default the least that is needed.")] = "",
    force: Annotated[
        bool, typer.Option("--force", help="Also where the chain will need this node, and it doesn't run.")
    ] = False,
    json_output: Json = False,
) -> None:
    """Make this home's key a validator, with a bond, and wait until it is one. Start the node first."""
    value = _parse_bond(bond)
    private_key = unlock_key(key_file)
    operator = address_of(private_key)
    key, proof = sign_registration(home, bytes.fromhex(operator[2:]))
    with ChainClient(chain) as client:
        check_chain(client, home)
        plan = plan_registration(client, operator, key, value)
        print(describe(plan), file=sys.stderr)
        if plan.is_needed:
            why = _find_absence(home)
            if why and not force:
                raise NotRegistered(
                    f"the chain would need this node's vote, and {why}: no block would come; next: `chain-node start"
                    f" --home {home}` first, a smaller --bond, or --force"
                )
        outcome = Sender(client, private_key).send("Staking", "registerValidator", key, proof, value=plan.value)
        found = client.staking.validator(operator)
    document: dict[str, Any] = {
        "operator": operator,
        "validator_address": found.consensus_address,
        "bond_wei": str(found.bond),
        "power": found.power,
        "total_power": plan.total_power,
        "is_needed": plan.is_needed,
        "height": outcome.height,
        "transaction": "0x" + outcome.transaction_hash.hex(),
    }
    if json_output:
        print(json.dumps(document))
        return
    print(
        f"{operator} is a validator since block {outcome.height}: bond {format_tokens(found.bond)}, power {found.power}"
        f" of {plan.total_power}; its votes count two blocks later; transaction {document['transaction']}"
    )


def leave_validator(
    key_file: KeyFile,
    chain: Chain = DEFAULT_CHAINS,
    withdraw: Annotated[bool, typer.Option("--withdraw", help="Take the bond back, once it is unlocked.")] = False,
    json_output: Json = False,
) -> None:
    """Free the whole bond, which ends the validator two blocks later; with --withdraw take it back."""
    private_key = unlock_key(key_file)
    operator = address_of(private_key)
    with ChainClient(chain) as client:
        sender = Sender(client, private_key)
        if withdraw:
            outcome = sender.send("Staking", "withdraw")
            amount = int(outcome.event("Withdrawn").fields["amount"])
            said = f"{format_tokens(amount)} came back to {operator}"
            document: dict[str, Any] = {"operator": operator, "amount_wei": str(amount)}
        else:
            amount = client.staking.bond_of(operator)
            if not amount:
                raise NotRegistered(f"{operator} has no bond; next: --withdraw, if it left before")
            outcome = sender.send("Staking", "unbond", amount)
            unlock_height = int(outcome.event("Unbonded").fields["unlock_height"])
            said = (
                f"{operator} leaves the set: its node must vote two blocks longer; {format_tokens(amount)} unlock at"
                f" block {unlock_height}, then: leave-validator --withdraw"
            )
            document = {"operator": operator, "amount_wei": str(amount), "unlock_height": unlock_height}
    print(json.dumps(document | {"height": outcome.height}) if json_output else said)


def describe(plan: Registration) -> str:
    """Say what a registration comes to, and whether the chain will depend on it."""
    said = f"power {plan.power} of {plan.total_power} for a bond of {format_tokens(plan.bond)}"
    if not plan.power:
        return f"{said}: the set is full of higher bonds"
    others = plan.total_power - plan.power
    if plan.is_needed:
        return (
            f"warning: {said}: the others have {others}, not more than two thirds, so the chain stands still whenever"
            " this node is down"
        )
    return f"{said}: the others have {others}, more than two thirds, and go on without it"


def _find_absence(home: Path) -> str:
    """Say why this home's node would not vote now; empty where it would."""
    listening = load_listening(home)
    status = fetch_status(listening.cometbft_url) if listening is not None else None
    if status is None:
        return "it doesn't run"
    return "it is still catching up" if status["sync_info"]["catching_up"] else ""


def _parse_bond(text: str) -> int | None:
    try:
        return parse_tokens(text) if text else None
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--bond") from error
