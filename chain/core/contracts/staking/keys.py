"""Keys of the Staking contract's state, all under ``k/``, and the parameters that genesis fixes.

``p`` parameters; ``t`` sum of bonds; ``b`` owner -> bond; ``u`` owner -> what is being freed; ``v`` operator ->
validator; ``a`` consensus address -> operator; ``w`` key -> power that CometBFT was told; ``g`` id -> proposal, ``n``
their number, ``o`` id of an open one.  Within a block only: ``d`` the set may have changed; ``e`` index -> evidence;
``c`` consensus address -> operator that has claimed it.  Numbers in keys are big-endian.
"""

from __future__ import annotations

from dataclasses import dataclass

from chain.core.abi.staking import STAKING_ADDRESS
from chain.core.contracts.params import ContractParams
from chain.core.record_codec import RecordCodec, pack, unpack
from chain.core.state import Base, Overlay
from chain.core.types import Address

STAKING = Address(STAKING_ADDRESS)
"""The contract's account: bonds and what is being freed."""

POWER_PREFIX = b"k/w"
"""Keys: prefix, 32-byte key; the application tells CometBFT what changes under it."""
EVIDENCE_PREFIX = b"k/e"
"""Keys: prefix, index; written before a block's transactions, gone at its end."""
VALIDATOR_PREFIX = b"k/v"
"""Keys: prefix, operator."""

NEWEST_RULES = 3
"""The rules that this software knows.

1: rounds and their records stay in the state for good.
2: settled rounds leave the state under an accumulator, and so do records of blobs that were released.
3: the state holds the hashes of recent blocks, for BLOCKHASH; the precompiles of elliptic curves run.
"""

_PARAMS_KEY = b"k/p"
_DIRTY_KEY = b"k/d"
_RULES_KEY = b"g/rules"


@dataclass(slots=True, kw_only=True)
class StakingParams:
    """What governance may change later."""

    unbond_blocks: int
    """Lock of a bond that is being freed; longer than evidence stays valid on a public chain."""
    power_unit_wei: int
    """Bond for each unit of voting power."""
    min_validator_bond_wei: int
    """Least bond of a validator."""
    max_validators: int
    """Those with the highest bonds vote."""
    double_sign_slash_ppm: int
    """Millionths of the bond that a double sign costs."""
    jail_blocks: int
    """Shortest time out of the set after a double sign."""


_PARAMS = RecordCodec(StakingParams)


def initialise_staking(state: Overlay, params: ContractParams) -> None:
    """Write what genesis fixes."""
    save_params(
        state,
        StakingParams(
            unbond_blocks=params.unbond_blocks,
            power_unit_wei=params.power_unit_wei,
            min_validator_bond_wei=params.min_validator_bond_wei,
            max_validators=params.max_validators,
            double_sign_slash_ppm=params.double_sign_slash_ppm,
            jail_blocks=params.jail_blocks,
        ),
    )
    set_rules(state, params.rules)


def get_params(state: Base) -> StakingParams:
    """Return the parameters in force."""
    value = state.get(_PARAMS_KEY)
    assert value is not None, "genesis has not run initialise_contracts"
    return _PARAMS.decode(value)


def save_params(state: Overlay, params: StakingParams) -> None:
    """Write the parameters; powers follow at the end of the block."""
    state.set(_PARAMS_KEY, _PARAMS.encode(params))
    mark_changed(state)


def mark_changed(state: Overlay) -> None:
    """Have the validator set computed again at the end of the block."""
    state.set(_DIRTY_KEY, b"")


def take_changed(state: Overlay) -> bool:
    """Return whether the set must be computed again, and forget it."""
    is_changed = state.get(_DIRTY_KEY) is not None
    state.delete(_DIRTY_KEY)
    return is_changed


def get_rules(state: Base) -> int:
    """Return the version of the rules in force; before contracts wrote it, the first."""
    value = state.get(_RULES_KEY)
    return int(unpack(value)) if value is not None else 1


def set_rules(state: Overlay, version: int) -> None:
    """Write the version of the rules."""
    state.set(_RULES_KEY, pack(version))


def get_number(state: Base, key: bytes) -> int:
    """Return a number, 0 where there is none."""
    value = state.get(key)
    return int(unpack(value)) if value is not None else 0


def set_number(state: Overlay, key: bytes, number: int) -> None:
    """Write a number; 0 takes no key."""
    if number == 0:
        state.delete(key)
    else:
        state.set(key, pack(number))
