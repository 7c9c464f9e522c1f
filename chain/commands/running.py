"""``chain-node start``, and the two processes of ours that it supervises: ``abci`` and ``rpc``."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from chain.cometbft import find_cometbft
from chain.commands.options import DEFAULT_HOME, FIRST_PORT, Home, Json, configure_logging, parse_address
from chain.home import Listening, load_chain_id
from chain.settings import load_settings
from chain.store import Store, naming_damage
from chain.supervisor import LOG_NAME, NodePlan, Supervisor

ROOT = Path(__file__).resolve().parents[2]
"""Of the repository: CometBFT is cached under it."""

RpcListen = Annotated[str, typer.Option(help="host:port of JSON-RPC; port 0 starts none.")]


def start(
    home: Home = DEFAULT_HOME,
    rpc_listen: RpcListen = "127.0.0.1:8545",
    fault: Annotated[str, typer.Option(hidden=True)] = "",
    json_output: Json = False,
) -> None:
    """Run application, CometBFT and JSON-RPC until SIGTERM or Ctrl-C."""
    configure_logging()
    host, port = parse_address(rpc_listen)
    load_settings(home)  # the application reads them too, and would only say so after five restarts
    cometbft = find_cometbft(os.environ.get("COMETBFT_BIN"), ROOT)
    plan = NodePlan(home=home, cometbft=cometbft, rpc_host=host, rpc_port=port, fault=fault)
    supervisor = Supervisor(plan)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, supervisor.request_stop)
    chain_id = load_chain_id(home)

    def announce(listening: Listening) -> None:
        if json_output:
            print(json.dumps({"chain_id": chain_id, **asdict(listening)}), flush=True)
        else:
            print(f"chain {chain_id} runs: JSON-RPC {listening.rpc_url or 'off'}, CometBFT {listening.cometbft_url}")
            print(f"its log is {home / 'logs' / LOG_NAME}; Ctrl-C stops it", flush=True)

    supervisor.run(announce)


def abci(
    home: Home = DEFAULT_HOME,
    socket: Annotated[Path | None, typer.Option(help="Unix socket; by default HOME/abci.sock.")] = None,
    fault: Annotated[str, typer.Option(hidden=True)] = "",
) -> None:
    """Run the application alone; CometBFT connects to its socket."""
    configure_logging()
    with naming_damage(home / "app"):
        _run_application(home, socket, fault)


def _run_application(home: Path, socket: Path | None, fault: str) -> None:
    from chain.abci.application import ChainApplication
    from chain.abci.faults import parse_fault
    from chain.abci.metrics import FILE_NAME, MeteredApplication
    from chain.abci.server import serve
    from chain.abci.verifying import VerifierUse
    from chain.snapshots import SnapshotDirectory, SnapshotMaker
    from chain.system import CONTRACTS, process_system_genesis

    settings = load_settings(home)
    store = Store(home / "app")
    maker: SnapshotMaker | None = None
    if settings.snapshot_interval_blocks:
        maker = SnapshotMaker(
            home, interval_blocks=settings.snapshot_interval_blocks, num_kept=settings.num_snapshots_kept
        )
    try:
        application = ChainApplication(
            store,
            CONTRACTS,
            process_system_genesis,
            fault=parse_fault(fault) if fault else None,
            snapshots=SnapshotDirectory(home / "snapshots"),
            retain_blocks=settings.retain_blocks,
            on_commit=maker.process_committed if maker is not None else None,
            verifier_use=VerifierUse(settings.verifier),
        )
        path = socket or home / "abci.sock"
        path.unlink(missing_ok=True)

        async def run() -> None:
            stopping = asyncio.Event()
            loop = asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, stopping.set)
            try:
                await serve(MeteredApplication(application, home / FILE_NAME), path, stopping)
            finally:
                application.close()

        asyncio.run(run())
        path.unlink(missing_ok=True)
    finally:
        if maker is not None:
            maker.close()
        store.close()


def rpc(
    home: Home = DEFAULT_HOME,
    cometbft_url: Annotated[str, typer.Option(help="CometBFT's RPC.")] = f"http://127.0.0.1:{FIRST_PORT + 1}",
    listen: Annotated[str, typer.Option(help="host:port to listen on.")] = "127.0.0.1:8545",
) -> None:
    """Run JSON-RPC alone, over the database of a running application."""
    from chain.rpc.server import run

    configure_logging()
    host, port = parse_address(listen)
    run(home, cometbft_url, host, port)
