"""Becoming a validator, and ceasing to be one: what a registration does to the set, and its two transactions.

SPEC.md, Validators.  Invariant: nobody's registration makes the chain depend on a node that doesn't vote without its
operator being told first.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from chain.core.contracts.staking.validators import MAX_POWER, compute_consensus_address
from chain.core.genesis import parse_genesis
from chain.home import load_genesis
from contracts.bindings.client import ChainClient
from contracts.bindings.errors import BindingError
from contracts.bindings.foreign_text import show_foreign
from contracts.bindings.standstill import is_enough
from contracts.bindings.types import StakingParams, Validator


class NotRegistered(Exception):
    """A registration that would do harm, or can't be made; the message says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """What a registration comes to."""

    value: int
    """Wei that are sent with it."""
    bond: int
    """Wei that back the validator afterwards."""
    power: int
    """Votes in CometBFT two blocks later; 0 where the set is full of higher bonds."""
    total_power: int
    """Of the whole set, then."""

    @property
    def is_needed(self) -> bool:
        """Whether the others alone make no blocks: this validator down, the chain stands still."""
        return not is_enough(self.total_power - self.power, self.total_power)


def check_chain(client: ChainClient, home: Path) -> None:
    """Raise NotRegistered where the home's node is of another chain than the one that is asked.

    The key's signature is over the genesis hash: the contract would call it a bad proof. Raises what ``client`` does.
    """
    genesis = load_genesis(home)
    own = parse_genesis(genesis["chain_id"], json.dumps(genesis["app_state"]).encode()).parameters
    found = client.genesis_hash()
    if found == own.genesis_hash:
        return
    raise NotRegistered(
        f"{home} is of chain {own.chain_id} (EVM chain id {own.evm_chain_id}, genesis 0x{own.genesis_hash.hex()[:16]}) "
        f"and --chain is {_name_chain(client)}, genesis 0x{found.hex()[:16]}); next: give the URL of a node of "
        f"{own.chain_id} with --chain, or the --home of a node of the other chain (`chain-node join`)"
    )


def _name_chain(client: ChainClient) -> str:
    evm = f"(EVM chain id {client.chain_id()}"
    try:
        network = show_foreign(str(client.ask_consensus("status", {})["node_info"]["network"]), 64)
        return f"chain {network} {evm}"
    except (BindingError, KeyError, TypeError):
        return f"another one {evm}"


def plan_registration(client: ChainClient, operator: str, key: bytes, value: int | None) -> Registration:
    """Compute what registering ``key`` for ``operator`` does; without ``value`` what the least bond lacks is sent.

    Raises NotRegistered, and what ``client`` raises.
    """
    params = client.staking.staking_params()
    listed = client.staking.validators()
    if any(each.operator == operator for each in listed):
        raise NotRegistered(f"{operator} is a validator already; next: nothing, or another --key-file")
    held = client.staking.bond_of(operator)
    own = "0x" + compute_consensus_address(key).hex()
    claimed = next((each for each in listed if each.consensus_address.lower() == own), None)
    held += claimed.bond if claimed is not None else 0
    least = max(params.min_validator_bond_wei, params.power_unit_wei)
    sent = max(0, least - held) if value is None else value
    return compute_registration(params, listed, key=key, held=held, value=sent)


def compute_registration(
    params: StakingParams, listed: Sequence[Validator], *, key: bytes, held: int, value: int
) -> Registration:
    """Return what a bond of ``held`` + ``value`` gives beside the validators ``listed``."""
    bond = held + value
    least = max(params.min_validator_bond_wei, params.power_unit_wei)
    if bond < least:
        raise NotRegistered(f"the bond would be {bond} wei, expected at least {least}; next: give more with --bond")
    others = {each.key: each.bond for each in listed if not each.jailed_until and each.key != key}
    powers = compute_powers(params, {**others, key: bond})
    return Registration(value=value, bond=bond, power=powers.get(key, 0), total_power=sum(powers.values()))


def compute_powers(params: StakingParams, bonds: Mapping[bytes, int]) -> dict[bytes, int]:
    """Return the set that these bonds make, by key: the highest first, as the chain does at a block's end.

    At equal bonds the chain takes the lower address, this takes the lower key: only who is last may differ.
    """
    least = max(params.min_validator_bond_wei, params.power_unit_wei)
    ranked = sorted((-bond, key) for key, bond in bonds.items() if bond >= least)[: params.max_validators]
    return {key: min(-bond // params.power_unit_wei, MAX_POWER) for bond, key in ranked}
