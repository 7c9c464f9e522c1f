"""Which chain a command talks to that was told none: the devnet that runs here, else the port that wallets expect.

A devnet takes another port where 8545 is somebody's already; whoever asked 8545 then would talk to a stranger's chain.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import typer

DEFAULT_CHAINS = ["http://127.0.0.1:8545"]
"""Where a devnet listens if it can; typer copies the list."""
CHAIN_VARIABLE = "ARCHIPELAGO_CHAIN"
"""Environment variable that stands for --chain; several URLs are separated by blanks."""
DEVNET_RECORD = Path(".cache/devnet/devnet.json")
"""What `localnet up` writes, under the working directory."""
START_TOLERANCE_SECONDS = 0.02
"""psutil computes start times from clock ticks of 10 ms."""


def choose_chains(context: typer.Context, urls: list[str]) -> list[str]:
    """Return the URLs of --chain or of the variable; without either those of a devnet that runs, and say so.

    It is a typer callback of an option whose parameter is named ``chain``.
    """
    source = context.get_parameter_source("chain")
    if source is None or source.name != "DEFAULT":
        return urls
    found = find_devnet(DEVNET_RECORD)
    if not found or found[:1] == DEFAULT_CHAINS:
        return urls
    print(f"chain: {found[0]}, the devnet in {DEVNET_RECORD.parent}; another one: --chain URL", file=sys.stderr)
    return found


def find_devnet(record: Path) -> list[str]:
    """Return the JSON-RPC URLs of a devnet whose supervisor runs; none where there is no such devnet."""
    try:
        raw = json.loads(record.read_text(encoding="utf-8"))
        is_up = raw["phase"] in ("starting", "ready") and _is_alive(**raw["supervisor"])
        return [str(url) for url in raw["rpc_urls"]] if is_up else []
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _is_alive(pid: int, started: float) -> bool:
    import psutil

    try:
        process = psutil.Process(pid)
        is_same = abs(process.create_time() - started) <= START_TOLERANCE_SECONDS
        return is_same and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
