"""The system contracts by address, and the state at genesis with them in it."""

from __future__ import annotations

import difflib
import re
from dataclasses import fields, replace
from typing import Any

from chain.core.block_hashes import initialise_block_hashes
from chain.core.contracts.params import ContractParams
from chain.core.contracts.registry import SYSTEM_CONTRACTS, initialise_contracts
from chain.core.errors import InvalidGenesis
from chain.core.evm.layout import SYSTEM_CODE, set_code
from chain.core.executor import Contracts
from chain.core.genesis import Genesis, process_genesis
from chain.core.state import Overlay

CONTRACTS: Contracts = {contract.address: contract for contract in SYSTEM_CONTRACTS}
"""What the executor calls."""


def process_system_genesis(state: Overlay, genesis: Genesis) -> None:
    """Write genesis with the contracts' parameters; raises InvalidGenesis for a name that they don't know."""
    known = {field.name for field in fields(ContractParams) if field.name != "tiers"}
    chosen: dict[str, Any] = {}
    for key, value in genesis.contract_parameters.items():
        name = re.sub(r"(?<!^)(?=[A-Z])", "_", key).lower()
        if name not in known:
            nearest = difflib.get_close_matches(name, known, n=1)
            advice = f", did you mean {_to_camel(nearest[0])}?" if nearest else ""
            raise InvalidGenesis(f"app_state has an unknown key {key!r}{advice}")
        chosen[name] = value
    try:
        parameters = replace(ContractParams(), **chosen)
    except ValueError as error:
        raise InvalidGenesis(str(error)) from error
    process_genesis(state, genesis)
    initialise_contracts(state, parameters)
    initialise_block_hashes(state, parameters.rules)
    for contract in SYSTEM_CONTRACTS:
        # Solidity looks for code before it calls; nothing ever runs this.
        set_code(state, contract.address, SYSTEM_CODE)


def _to_camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(word.capitalize() for word in rest)
