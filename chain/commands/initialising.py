"""``chain-node init`` and ``testnet``: the homes of a new chain."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from chain.cometbft import Timing
from chain.commands.options import DEFAULT_HOME, FIRST_PORT, Home, Json, choose_chain_id
from chain.core.errors import InvalidGenesis
from chain.core.genesis import DEFAULT_BASE_FEE_WEI, DEFAULT_GAS_LIMIT, parse_genesis
from chain.home import Addresses, compute_evm_chain_id, create_network
from chain.ports import find_free_ports
from chain.settings import NodeSettings, save_settings

SnapshotInterval = Annotated[int, typer.Option(min=0, help="Blocks between state-sync snapshots; 0: none.")]
RetainBlocks = Annotated[int, typer.Option(min=0, help="Newest blocks that are kept; 0: all.")]


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

    chosen_id = choose_chain_id(chain_id)
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


def _make_settings(snapshot_interval: int, retain_blocks: int) -> NodeSettings:
    try:
        return NodeSettings(snapshot_interval_blocks=snapshot_interval, retain_blocks=retain_blocks)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
