"""``chain-node verify`` and ``validator-proof``: what is believed because it is signed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chain.commands.options import DEFAULT_HOME, Home, Json, TrustHash, check_trust, parse_account
from chain.home import sign_registration
from contracts.bindings.devnet import CHAIN_VARIABLE, DEFAULT_CHAINS, choose_chains
from contracts.bindings.foreign_text import show_foreign
from contracts.bindings.option_needs import check_needs

if TYPE_CHECKING:
    from chain.verified_reads import VerifiedRound


def verify_read(
    chain: Annotated[
        list[str],
        typer.Option(
            envvar=CHAIN_VARIABLE,
            callback=choose_chains,
            help="JSON-RPC URL of a node; several must agree on the genesis. Without it the devnet that runs here.",
        ),
    ] = DEFAULT_CHAINS,
    address: Annotated[str, typer.Option(help="Account to read.")] = "",
    run: Annotated[int, typer.Option(help="Training run to read.")] = 0,
    round_: Annotated[
        int | None, typer.Option("--round", min=0, help="With --run: a round of it, however old.")
    ] = None,
    genesis: Annotated[Path | None, typer.Option(help="genesis.json you trust; by default the nodes' word.")] = None,
    trust_height: Annotated[int, typer.Option(help="With --trust-hash: a block you trust.")] = 0,
    trust_hash: TrustHash = "",
    json_output: Json = False,
) -> None:
    """Read the state so that no node has to be trusted: proofs, headers, and the validators' signatures."""
    check_trust(trust_height, trust_hash)
    check_needs("--round", round_ is not None, "--run", run)
    if not address and not run:
        raise typer.BadParameter("say what to read: --address or --run")
    account_address = parse_account(address) if address else b""
    from chain.light_client import JsonRpcSource
    from chain.verified_reads import connect, load_genesis_file, read_account, read_round, read_run

    client = connect(
        chain,
        genesis=load_genesis_file(genesis) if genesis is not None else None,
        trust_height=trust_height,
        trust_hash=trust_hash,
    )
    document: dict[str, Any] = {"chain_id": client.chain_id}
    if address:
        account = read_account(client, account_address)
        document.update(address=address, nonce=account.nonce, balance_wei=str(account.balance), height=account.height)
    if run and round_ is not None:
        document.update(_describe_round(read_round(client, JsonRpcSource(chain[0]), run, round_)))
    elif run:
        found = read_run(client, run)
        document.update(
            run=run,
            state=found.run.state.name,
            num_settled=found.run.num_settled,
            head_root=found.run.head_root.hex(),
            certified_version=found.run.certified_version,
            height=found.height,
        )
    header = client.trusted.header
    document.update(verified_by_header=header.height, num_validators=len(client.trusted.validators))
    if json_output:
        print(json.dumps(document))
        return
    for key, value in document.items():
        lines = [" ".join(map(str, each.values())) for each in value] if isinstance(value, list) else [value]
        for line in lines or ["none"]:
            print(f"{key.replace('_', ' '):>18}  {show_foreign(str(line))}")
    if genesis is None and not trust_hash:
        print(f"trusting the genesis that {', '.join(chain)} told: keep genesis.json and give --genesis next time")


def _describe_round(found: VerifiedRound) -> dict[str, Any]:
    archived = found.archived
    return {
        "run": found.run,
        "round": archived.round.round,
        "state": archived.round.state.name,
        "is_archived": found.is_archived,
        "root": archived.round.root.hex(),
        "updates": [
            {"member": "0x" + worker.hex(), "fate": update.fate.name, "digest": update.digest.hex()}
            for worker, update in archived.updates
        ],
        "votes": [{"member": "0x" + worker.hex(), "root": vote.root.hex()} for worker, vote in archived.votes],
        "height": found.height,
    }


def make_validator_proof(
    operator: Annotated[str, typer.Option(help="Address of the account that shall hold bond and fees.")],
    home: Home = DEFAULT_HOME,
    json_output: Json = False,
) -> None:
    """Sign with the validator's key whose it is: the arguments of Staking.registerValidator."""
    key, proof = sign_registration(home, parse_account(operator))
    if json_output:
        print(json.dumps({"key": "0x" + key.hex(), "proof": "0x" + proof.hex()}))
        return
    print(f"  key  0x{key.hex()}\nproof  0x{proof.hex()}")
    print("chain-node register-validator makes and sends them in one step; by hand:")
    print(
        f"send them from {operator}: Staking (0x..1002) registerValidator(key, proof), the value is added to the bond"
    )
