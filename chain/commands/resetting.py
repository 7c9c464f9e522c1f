"""``chain-node reset``: begin again, as a new chain or on the same one."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from chain.commands.options import DEFAULT_HOME, Home, Json, TrustHash, check_trust, choose_chain_id
from chain.home import hold_home, load_genesis
from chain.resetting import reset_home, reset_state


def reset(
    home: Home = DEFAULT_HOME,
    chain_id: Annotated[str, typer.Option(help="The new CometBFT chain id; by default a random one.")] = "",
    state: Annotated[
        bool, typer.Option("--state", help="Stay on this chain: forget blocks and state only, and fetch them again.")
    ] = False,
    servers: Annotated[
        list[str] | None,
        typer.Option("--server", help="With --state: CometBFT RPC URL of a node whose snapshot is taken; give two."),
    ] = None,
    trust_height: Annotated[
        int, typer.Option(help="With --trust-hash: a block you trust; 0 takes the servers' word.")
    ] = 0,
    trust_hash: TrustHash = "",
    unsafe: Annotated[
        bool,
        typer.Option(
            "--unsafe",
            help="With --state: forget also what the validator's key has signed. It may then sign twice, which costs"
            " its bond.",
        ),
    ] = False,
    json_output: Json = False,
) -> None:
    """Forget all blocks: start a new chain with the same keys and first balances, or (--state) stay on this one."""
    check_trust(trust_height, trust_hash)
    if not state and (servers or unsafe or trust_height or trust_hash):
        raise typer.BadParameter("--server, --trust-height, --trust-hash and --unsafe need --state")
    if state and chain_id:
        raise typer.BadParameter("--state stays on the chain, --chain-id names a new one: give one of them")
    if (trust_height or trust_hash) and not servers:
        raise typer.BadParameter("--trust-height and --trust-hash need --server: blocks of the peers are all checked")
    genesis = load_genesis(home)
    if state:
        document = _reset_state(home, genesis, servers or [], trust_height, trust_hash, unsafe)
    else:
        document = {"chain_id": choose_chain_id(chain_id)}
        with hold_home(home):
            reset_home(home, chain_id=document["chain_id"], time=datetime.now(UTC))
    if json_output:
        print(json.dumps(document))
    elif not state:
        print(f"{home} will start chain {document['chain_id']} from block 0")
    else:
        how = f"a snapshot of {' and '.join(servers)}" if servers else "all blocks of its peers"
        print(f"{home} stays on chain {document['chain_id']} and will fetch {how}")
        signed = document["signed_height"]
        print(
            "what its key has signed is forgotten: start it nowhere else, and not before the others have passed that"
            if unsafe
            else f"its key has signed for height {signed}, and signs nothing up to there again"
        )


def _reset_state(
    home: Home, genesis: dict[str, Any], servers: list[str], trust_height: int, trust_hash: str, is_unsafe: bool
) -> dict[str, Any]:
    from chain.joining import JoinFailed, plan_join

    source = None
    if servers:
        plan = plan_join(servers, peers=[], trust_height=trust_height, trust_hash=trust_hash)
        if plan.genesis["chain_id"] != genesis["chain_id"]:
            raise JoinFailed(
                f"{servers[0]} follows {plan.genesis['chain_id']}, {home} is of {genesis['chain_id']};"
                " next: name servers of this chain"
            )
        source = plan.source
    with hold_home(home):
        signed_height = reset_state(home, source=source, is_forgetting_signatures=is_unsafe)
    return {"chain_id": genesis["chain_id"], "signed_height": signed_height, "is_snapshot": source is not None}
