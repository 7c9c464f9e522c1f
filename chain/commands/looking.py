"""``chain-node status`` and ``doctor``: where a node stands, and what is wrong with it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.text import Text

from chain.cometbft import find_cometbft, load_keys
from chain.commands.options import DEFAULT_HOME, Home, Json
from chain.commands.running import ROOT, RpcListen
from chain.doctor import examine, to_documents
from chain.findings import Finding, Level
from chain.home import find_supervisor, load_app_height, load_chain_id, load_listening
from chain.store import Reader
from chain.supervisor import LOG_NAME, fetch_status
from contracts.bindings.foreign_text import show_foreign, show_lines

COLOURS = {Level.OK: "green", Level.WARNING: "yellow", Level.PROBLEM: "red"}


def status(home: Home = DEFAULT_HOME, json_output: Json = False) -> None:
    """Show where a node stands; exit code 1 when it doesn't run."""
    document = _collect(home)
    if json_output:
        print(json.dumps(document))
    else:
        for key, value in document.items():
            print(f"{key.replace('_', ' '):>17}  {'' if value is None else show_foreign(str(value))}")
    if not document["running"]:
        raise typer.Exit(1)


def doctor(home: Home = DEFAULT_HOME, rpc_listen: RpcListen = "127.0.0.1:8545", json_output: Json = False) -> None:
    """Name what is wrong with a node and what to do; exit code 1 when there is a problem."""

    def find_binary() -> Path:
        return find_cometbft(os.environ.get("COMETBFT_BIN"), ROOT)

    findings = examine(home, find_binary=find_binary, rpc_listen=rpc_listen)
    if json_output:
        print(json.dumps(to_documents(findings)))
    else:
        _print(findings)
    if any(each.level is Level.PROBLEM for each in findings):
        raise typer.Exit(1)


def _collect(home: Path) -> dict[str, Any]:
    document: dict[str, Any] = {
        "chain_id": load_chain_id(home),
        "home": str(home),
        "log": str(home / "logs" / LOG_NAME),
        "height": None,
        "running": False,
        "process": find_supervisor(home),
        "validator_address": load_keys(home).validator_address,
        "node_id": load_keys(home).node_id,
    }
    if load_app_height(home) is not None:
        with Reader(home / "app") as reader, reader.snapshot() as snapshot:
            parameters = snapshot.genesis_info()
            document.update(
                height=snapshot.height,
                app_hash=snapshot.app_hash.hex(),
                evm_chain_id=parameters.evm_chain_id,
                genesis_hash=parameters.genesis_hash.hex(),
            )
    listening = load_listening(home)
    answer = fetch_status(listening.cometbft_url) if listening is not None else None
    if listening is not None and answer is not None and answer["node_info"]["network"] == document["chain_id"]:
        document.update(
            running=True,
            cometbft_url=listening.cometbft_url,
            rpc_url=listening.rpc_url,
            core_height=int(answer["sync_info"]["latest_block_height"]),
            catching_up=bool(answer["sync_info"]["catching_up"]),
            voting_power=int(answer["validator_info"]["voting_power"]),
        )
    return document


def _print(findings: list[Finding]) -> None:
    console = Console(highlight=False, soft_wrap=True)
    for each in findings:
        colour = COLOURS[each.level]
        console.print(Text.assemble((f"{each.level.value:>8}", colour), show_lines(f"  {each.subject}: {each.what}")))
        if each.next_step:
            console.print(Text(show_lines(f"{'':>8}  next: {each.next_step}")))
