"""``chain-node``: initialise, run and look at a node of the chain."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from chain.cometbft import CometBftMissing, Timing, find_cometbft
from chain.core.errors import ChainError, InvalidGenesis
from chain.core.genesis import DEFAULT_BASE_FEE_WEI, DEFAULT_GAS_LIMIT, parse_genesis
from chain.home import (
    ADDRESS_BYTES,
    Addresses,
    HomeError,
    Listening,
    compute_evm_chain_id,
    create_network,
    join_network,
    load_app_height,
    load_chain_id,
    load_listening,
    reset_home,
    sign_registration,
)
from chain.joining import JoinFailed
from chain.recursion import StackTooSmall
from chain.settings import InvalidSettings, NodeSettings, load_settings, save_settings
from chain.store import Reader, Store, StoreError
from chain.supervisor import ChildFailed, NodePlan, Supervisor, fetch_status, find_free_ports
from contracts.bindings.failures import describe_failure

DEFAULT_HOME = Path("chain-home")
FIRST_PORT = 26656
"""CometBFT's customary p2p port; RPC is one above."""

app = typer.Typer(
    help="Run a node of the chain: CometBFT, the application and JSON-RPC.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

Home = Annotated[Path, typer.Option(help="The node's directory.")]
SnapshotInterval = Annotated[int, typer.Option(min=0, help="Blocks between state-sync snapshots; 0: none.")]
RetainBlocks = Annotated[int, typer.Option(min=0, help="Newest blocks that are kept; 0: all.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def init(
    home: Home = DEFAULT_HOME,
    chain_id: Annotated[str, typer.Option(help="CometBFT chain id; by default a new one.")] = "",
    alloc: Annotated[
        list[Path] | None, typer.Option(help='JSON file {"0xaddress": "wei"} with first balances; may be repeated.')
    ] = None,
    evm_chain_id: Annotated[int, typer.Option(help="Chain id in transactions; 0 derives it from the chain id.")] = 0,
    gas_limit: Annotated[int, typer.Option(help="Gas of a block.")] = DEFAULT_GAS_LIMIT,
    base_fee_wei: Annotated[int, typer.Option(help="Wei a gas, burned.")] = DEFAULT_BASE_FEE_WEI,
    storage_epoch_blocks: Annotated[int, typer.Option(help="Length of a storage epoch; 0 takes the default.")] = 0,
    unbond_blocks: Annotated[int, typer.Option(help="Lock of unbonding stake; 0 takes the default.")] = 0,
    timeout_commit_ms: Annotated[int, typer.Option(help="Pause after a block.")] = Timing().commit_milliseconds,
    empty_blocks: Annotated[bool, typer.Option(help="Make blocks without transactions.")] = True,
    snapshot_interval: SnapshotInterval = NodeSettings().snapshot_interval_blocks,
    retain_blocks: RetainBlocks = 0,
    json_output: Json = False,
) -> None:
    """Write keys, configuration and genesis of a chain with one validator."""
    ports = (FIRST_PORT + 1, FIRST_PORT)
    _initialise(
        [home],
        [Addresses(rpc=f"127.0.0.1:{ports[0]}", p2p=f"127.0.0.1:{ports[1]}")],
        chain_id=chain_id,
        app_state=_make_app_state(alloc, evm_chain_id, gas_limit, base_fee_wei, storage_epoch_blocks, unbond_blocks),
        timing=Timing(commit_milliseconds=timeout_commit_ms, is_creating_empty_blocks=empty_blocks),
        settings=_make_settings(snapshot_interval, retain_blocks),
        json_output=json_output,
    )


@app.command(name="testnet")
def init_network(
    home: Home = DEFAULT_HOME,
    validators: Annotated[int, typer.Option(min=1, max=64, help="Number of validators.")] = 4,
    chain_id: Annotated[str, typer.Option(help="CometBFT chain id; by default a new one.")] = "",
    alloc: Annotated[list[Path] | None, typer.Option(help="JSON files with first balances.")] = None,
    evm_chain_id: Annotated[int, typer.Option(help="Chain id in transactions; 0 derives it from the chain id.")] = 0,
    gas_limit: Annotated[int, typer.Option(help="Gas of a block.")] = DEFAULT_GAS_LIMIT,
    base_fee_wei: Annotated[int, typer.Option(help="Wei a gas, burned.")] = DEFAULT_BASE_FEE_WEI,
    storage_epoch_blocks: Annotated[int, typer.Option(help="Length of a storage epoch; 0 takes the default.")] = 0,
    unbond_blocks: Annotated[int, typer.Option(help="Lock of unbonding stake; 0 takes the default.")] = 0,
    timeout_commit_ms: Annotated[int, typer.Option(help="Pause after a block.")] = Timing().commit_milliseconds,
    snapshot_interval: SnapshotInterval = NodeSettings().snapshot_interval_blocks,
    retain_blocks: RetainBlocks = 0,
    json_output: Json = False,
) -> None:
    """Write the homes of several validators on this machine: HOME/validator-0, HOME/validator-1, ..."""
    ports = find_free_ports(2 * validators)
    addresses = [
        Addresses(rpc=f"127.0.0.1:{rpc}", p2p=f"127.0.0.1:{p2p}")
        for rpc, p2p in zip(ports[:validators], ports[validators:], strict=True)
    ]
    _initialise(
        [home / f"validator-{index}" for index in range(validators)],
        addresses,
        chain_id=chain_id,
        app_state=_make_app_state(alloc, evm_chain_id, gas_limit, base_fee_wei, storage_epoch_blocks, unbond_blocks),
        timing=Timing(commit_milliseconds=timeout_commit_ms),
        settings=_make_settings(snapshot_interval, retain_blocks),
        json_output=json_output,
    )


@app.command()
def start(
    home: Home = DEFAULT_HOME,
    rpc_listen: Annotated[str, typer.Option(help="host:port of JSON-RPC; port 0 starts none.")] = "127.0.0.1:8545",
    fault: Annotated[str, typer.Option(hidden=True)] = "",
    json_output: Json = False,
) -> None:
    """Run application, CometBFT and JSON-RPC until SIGTERM or Ctrl-C."""
    _configure_logging()
    host, port = _parse_address(rpc_listen)
    root = Path(__file__).resolve().parent.parent
    cometbft = find_cometbft(os.environ.get("COMETBFT_BIN"), root)
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
            print(f"logs in {home / 'logs'}; Ctrl-C stops it", flush=True)

    supervisor.run(announce)


@app.command()
def abci(
    home: Home = DEFAULT_HOME,
    socket: Annotated[Path | None, typer.Option(help="Unix socket; by default HOME/abci.sock.")] = None,
    fault: Annotated[str, typer.Option(hidden=True)] = "",
) -> None:
    """Run the application alone; CometBFT connects to its socket."""
    from chain.abci.application import ChainApplication
    from chain.abci.faults import parse_fault
    from chain.abci.server import serve
    from chain.snapshots import SnapshotDirectory, SnapshotMaker
    from chain.system import CONTRACTS, process_system_genesis

    _configure_logging()
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
        )
        path = socket or home / "abci.sock"
        path.unlink(missing_ok=True)

        async def run() -> None:
            stopping = asyncio.Event()
            loop = asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, stopping.set)
            await serve(application, path, stopping)

        asyncio.run(run())
        path.unlink(missing_ok=True)
    finally:
        if maker is not None:
            maker.close()
        store.close()


@app.command()
def rpc(
    home: Home = DEFAULT_HOME,
    cometbft_url: Annotated[str, typer.Option(help="CometBFT's RPC.")] = f"http://127.0.0.1:{FIRST_PORT + 1}",
    listen: Annotated[str, typer.Option(help="host:port to listen on.")] = "127.0.0.1:8545",
) -> None:
    """Run JSON-RPC alone, over the database of a running application."""
    from chain.rpc.server import run

    _configure_logging()
    host, port = _parse_address(listen)
    run(home, cometbft_url, host, port)


@app.command()
def snapshot(
    home: Home = DEFAULT_HOME,
    keep: Annotated[int, typer.Option(min=1, help="Snapshots to keep.")] = NodeSettings().num_snapshots_kept,
    follow: Annotated[bool, typer.Option(hidden=True)] = False,
    json_output: Json = False,
) -> None:
    """Make a state-sync snapshot of the newest block now, also while the node runs."""
    from chain.snapshots import SnapshotDirectory, describe, follow_heights

    _configure_logging()
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


@app.command()
def join(
    servers: Annotated[list[str], typer.Option("--server", help="CometBFT RPC URL of a running node; give two.")],
    home: Home = DEFAULT_HOME,
    peer: Annotated[list[str] | None, typer.Option(help="id@host:port; by default the servers' own.")] = None,
    state_sync: Annotated[bool, typer.Option(help="Restore a snapshot instead of replaying all blocks.")] = True,
    trust_height: Annotated[int, typer.Option(help="A header you trust; 0 takes the servers' word.")] = 0,
    trust_hash: Annotated[str, typer.Option(help="Its hash, hex.")] = "",
    json_output: Json = False,
) -> None:
    """Write the home of one more node of a running chain; `chain-node start` then fetches the state."""
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
    print(f"chain {document['chain_id']}; start it with: chain-node start --home {home}")
    if state_sync and not trust_hash:
        print(
            f"trusting what {' and '.join(servers)} say of height {plan.source.trust_height}:"
            f" {plan.source.trust_hash}; compare it with somebody you know"
        )


@app.command(name="verify")
def verify_read(
    chain: Annotated[list[str], typer.Option(help="JSON-RPC URL of a node; several must agree on the genesis.")],
    address: Annotated[str, typer.Option(help="Account to read.")] = "",
    run: Annotated[int, typer.Option(help="Training run to read.")] = 0,
    genesis: Annotated[Path | None, typer.Option(help="genesis.json you trust; by default the nodes' word.")] = None,
    trust_height: Annotated[int, typer.Option(help="Or: a block you trust.")] = 0,
    trust_hash: Annotated[str, typer.Option(help="Its hash, hex.")] = "",
    json_output: Json = False,
) -> None:
    """Read the state so that no node has to be trusted: proofs, headers, and the validators' signatures."""
    from chain.verified_reads import connect, load_genesis_file, read_account, read_run

    client = connect(
        chain,
        genesis=load_genesis_file(genesis) if genesis is not None else None,
        trust_height=trust_height,
        trust_hash=trust_hash,
    )
    document: dict[str, Any] = {"chain_id": client.chain_id}
    if address:
        account = read_account(client, _parse_account(address))
        document.update(address=address, nonce=account.nonce, balance_wei=str(account.balance), height=account.height)
    if run:
        found = read_run(client, run)
        document.update(
            run=run,
            state=found.run.state.name,
            num_settled=found.run.num_settled,
            head_root=found.run.head_root.hex(),
            certified_version=found.run.certified_version,
            height=found.height,
        )
    if not address and not run:
        raise typer.BadParameter("say what to read: --address or --run")
    header = client.trusted.header
    document.update(verified_by_header=header.height, num_validators=len(client.trusted.validators))
    if json_output:
        print(json.dumps(document))
        return
    for key, value in document.items():
        print(f"{key.replace('_', ' '):>18}  {value}")
    if genesis is None and not trust_hash:
        print(f"trusting the genesis that {', '.join(chain)} told: keep genesis.json and give --genesis next time")


@app.command(name="validator-proof")
def make_validator_proof(
    operator: Annotated[str, typer.Option(help="Address of the account that shall hold bond and fees.")],
    home: Home = DEFAULT_HOME,
    json_output: Json = False,
) -> None:
    """Sign with the validator's key whose it is: the arguments of Staking.registerValidator."""
    key, proof = sign_registration(home, _parse_account(operator))
    if json_output:
        print(json.dumps({"key": "0x" + key.hex(), "proof": "0x" + proof.hex()}))
        return
    print(f"  key  0x{key.hex()}\nproof  0x{proof.hex()}")
    print(
        f"send them from {operator}: Staking (0x..1002) registerValidator(key, proof), the value is added to the bond"
    )


@app.command()
def status(home: Home = DEFAULT_HOME, json_output: Json = False) -> None:
    """Show where a node stands."""
    document: dict[str, Any] = {"chain_id": load_chain_id(home), "home": str(home), "height": None, "running": False}
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
    if listening is not None:
        answer = fetch_status(listening.cometbft_url)
        document["running"] = answer is not None
        if answer is not None:
            document.update(cometbft_url=listening.cometbft_url, rpc_url=listening.rpc_url)
    if json_output:
        print(json.dumps(document))
        return
    for key, value in document.items():
        print(f"{key.replace('_', ' '):>14}  {value}")


@app.command()
def reset(
    home: Home = DEFAULT_HOME,
    chain_id: Annotated[str, typer.Option(help="The new CometBFT chain id; by default a random one.")] = "",
    json_output: Json = False,
) -> None:
    """Forget all blocks and start a new chain with the same keys and first balances."""
    listening = load_listening(home)
    if listening is not None and fetch_status(listening.cometbft_url) is not None:
        raise HomeError(f"the node of {home} runs (process {listening.supervisor_pid}): stop it first")
    new_id = chain_id or _make_chain_id()
    reset_home(home, chain_id=new_id, time=datetime.now(UTC))
    print(json.dumps({"chain_id": new_id}) if json_output else f"{home} will start chain {new_id} from block 0")


def main() -> None:
    """Run the command line; expected failures are one readable line and exit code 1."""
    try:
        app()
    except (
        HomeError,
        StoreError,
        CometBftMissing,
        ChildFailed,
        ChainError,
        InvalidSettings,
        JoinFailed,
        StackTooSmall,
    ) as error:
        print(describe_failure(error), file=sys.stderr)
        sys.exit(1)


def _initialise(
    homes: list[Path],
    addresses: list[Addresses],
    *,
    chain_id: str,
    app_state: Callable[[str], dict[str, Any]],
    timing: Timing,
    settings: NodeSettings,
    json_output: bool,
) -> None:
    from chain.core.state import Overlay
    from chain.system import process_system_genesis

    chosen_id = chain_id or _make_chain_id()
    document = app_state(chosen_id)
    genesis = parse_genesis(chosen_id, json.dumps(document).encode())
    process_system_genesis(Overlay(), genesis)
    create_network(
        homes, chain_id=chosen_id, app_state=document, addresses=addresses, timing=timing, time=datetime.now(UTC)
    )
    for home in homes:
        save_settings(home, settings)
    summary = {
        "chain_id": chosen_id,
        "evm_chain_id": genesis.parameters.evm_chain_id,
        "genesis_hash": genesis.parameters.genesis_hash.hex(),
        "homes": [str(home) for home in homes],
    }
    if json_output:
        print(json.dumps(summary))
        return
    print(f"chain {chosen_id}, EVM chain id {summary['evm_chain_id']}, genesis hash {summary['genesis_hash']}")
    for home in homes:
        print(f"start it with: chain-node start --home {home}")


def _make_app_state(
    alloc: list[Path] | None,
    evm_chain_id: int,
    gas_limit: int,
    base_fee_wei: int,
    storage_epoch_blocks: int,
    unbond_blocks: int,
) -> Callable[[str], dict[str, Any]]:
    balances: dict[str, Any] = {}
    for path in alloc or []:
        try:
            document = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise InvalidGenesis(f"--alloc {path} can't be read: {error}") from error
        if not isinstance(document, dict):
            raise InvalidGenesis(f"--alloc {path} is no JSON object of address -> wei")
        balances.update(document)

    def make(chain_id: str) -> dict[str, Any]:
        state: dict[str, Any] = {
            "evmChainId": evm_chain_id or compute_evm_chain_id(chain_id),
            "alloc": balances,
            "gasLimit": gas_limit,
            "baseFeeWei": str(base_fee_wei),
        }
        if storage_epoch_blocks:
            state["storageEpochBlocks"] = storage_epoch_blocks
        if unbond_blocks:
            state["unbondBlocks"] = unbond_blocks
        return state

    return make


def _parse_account(text: str) -> bytes:
    try:
        account = bytes.fromhex(text.removeprefix("0x"))
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is no hex address") from error
    if len(account) != ADDRESS_BYTES:
        raise typer.BadParameter(f"{text!r} has {len(account)} bytes, expected {ADDRESS_BYTES}")
    return account


def _make_settings(snapshot_interval: int, retain_blocks: int) -> NodeSettings:
    try:
        return NodeSettings(snapshot_interval_blocks=snapshot_interval, retain_blocks=retain_blocks)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def _make_chain_id() -> str:
    return f"archipelago-{secrets.token_hex(4)}"


def _parse_address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit():
        raise typer.BadParameter(f"{text!r} is no host:port")
    return host, int(port)


def _configure_logging() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)


if __name__ == "__main__":
    main()
