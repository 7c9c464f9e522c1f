"""``chain-node snapshot`` and ``join``: how a fresh node gets a recent state, and who gives it."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from chain.cometbft import Timing
from chain.commands.options import DEFAULT_HOME, Home, Json, TrustHash, check_trust, configure_logging
from chain.home import Addresses, join_network
from chain.ports import find_free_ports
from chain.settings import NodeSettings
from chain.store import Reader
from contracts.bindings.foreign_text import show_foreign


def snapshot(
    home: Home = DEFAULT_HOME,
    keep: Annotated[int, typer.Option(min=1, help="Snapshots to keep.")] = NodeSettings().num_snapshots_kept,
    follow: Annotated[bool, typer.Option(hidden=True)] = False,
    json_output: Json = False,
) -> None:
    """Make a state-sync snapshot of the newest block now, also while the node runs."""
    from chain.snapshots import SnapshotDirectory, describe, follow_heights

    configure_logging()
    if follow:
        follow_heights(home, sys.stdin.buffer, num_kept=keep)
        return
    directory = SnapshotDirectory(home / "snapshots")
    with Reader(home / "app") as reader, reader.snapshot() as view:
        manifest = directory.make(view)
    directory.prune(keep)
    document = describe(manifest)
    if json_output:
        print(json.dumps(document))
        return
    for key, value in document.items():
        print(f"{key.replace('_', ' '):>14}  {value}")


def join(
    servers: Annotated[list[str], typer.Option("--server", help="CometBFT RPC URL of a running node; give two.")],
    home: Home = DEFAULT_HOME,
    peer: Annotated[list[str] | None, typer.Option(help="id@host:port; by default the servers' own.")] = None,
    state_sync: Annotated[bool, typer.Option(help="Restore a snapshot instead of replaying all blocks.")] = True,
    trust_height: Annotated[
        int, typer.Option(help="With --trust-hash: a block you trust; 0 takes the servers' word.")
    ] = 0,
    trust_hash: TrustHash = "",
    json_output: Json = False,
) -> None:
    """Write the home of one more node of a running chain; `chain-node start` then fetches the state."""
    check_trust(trust_height, trust_hash)
    from chain.joining import plan_join

    plan = plan_join(servers, peers=peer or [], trust_height=trust_height, trust_hash=trust_hash)
    ports = find_free_ports(2)
    keys = join_network(
        home,
        genesis=plan.genesis,
        addresses=Addresses(rpc=f"127.0.0.1:{ports[0]}", p2p=f"127.0.0.1:{ports[1]}"),
        peers=plan.peers,
        timing=Timing(),
        state_sync=plan.source if state_sync else None,
    )
    document = {
        "chain_id": plan.genesis["chain_id"],
        "home": str(home),
        "node_id": keys.node_id,
        "trust_height": plan.source.trust_height,
        "trust_hash": plan.source.trust_hash,
    }
    if json_output:
        print(json.dumps(document))
        return
    print(f"chain {show_foreign(plan.genesis['chain_id'])}; start it with: chain-node start --home {home}")
    if state_sync and not trust_hash:
        print(
            f"trusting what {' and '.join(servers)} say of height {plan.source.trust_height}:"
            f" {show_foreign(plan.source.trust_hash)}; compare it with somebody you know"
        )
    if state_sync and plan.source.trust_height < NodeSettings().snapshot_interval_blocks:
        print(
            f"the chain is at block {plan.source.trust_height}, and nodes make a snapshot every"
            f" {NodeSettings().snapshot_interval_blocks}: where there is none, `chain-node snapshot` there makes one,"
            " or join with --no-state-sync, which replays all blocks"
        )
    if len(servers) == 1:
        print("one node alone vouches for that: a second --server, of another node, would be a second witness")
