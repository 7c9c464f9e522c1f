"""The system contracts as the executor sees them, and what genesis writes for them."""

from __future__ import annotations

from chain.core.abi.codec import ContractCodec
from chain.core.abi.staking import STAKING
from chain.core.abi.storage import STORAGE
from chain.core.abi.training import TRAINING
from chain.core.contracts.dispatch import build_contract
from chain.core.contracts.params import ContractParams
from chain.core.contracts.staking.handlers import STAKING_HANDLERS, process_staking_block_end
from chain.core.contracts.staking.keys import initialise_staking
from chain.core.contracts.storage.block_end import process_storage_block_end
from chain.core.contracts.storage.handlers import STORAGE_HANDLERS
from chain.core.contracts.storage.keys import initialise_storage
from chain.core.contracts.training.handlers import TRAINING_HANDLERS
from chain.core.native import NativeContract
from chain.core.rounds.timers import process_rounds_block_end
from chain.core.state import Overlay
from chain.core.types import Address

CODECS: dict[Address, ContractCodec] = {
    Address(contract.address): ContractCodec(contract) for contract in (TRAINING, STORAGE, STAKING)
}
"""By address."""

SYSTEM_CONTRACTS: tuple[NativeContract, ...] = (
    build_contract(TRAINING, TRAINING_HANDLERS, CODECS, process_rounds_block_end),
    build_contract(STORAGE, STORAGE_HANDLERS, CODECS, process_storage_block_end),
    build_contract(STAKING, STAKING_HANDLERS, CODECS, process_staking_block_end),
)
"""In the order in which their block ends run."""


def initialise_contracts(state: Overlay, params: ContractParams) -> None:
    """Write at genesis what the contracts keep of their parameters."""
    initialise_storage(state, params)
    initialise_staking(state, params)
