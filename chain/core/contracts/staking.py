"""The Staking contract: bonds of operators, free again after a lock.

Keys under ``k/``: ``b`` + owner the active bond, ``u`` + owner what is being freed, ``t`` the sum of active
bonds, ``p`` the lock.  Invariant: the contract's balance is the sum of active bonds and of what is being freed.
"""

from __future__ import annotations

from chain.core.abi.refusal import Refusal
from chain.core.abi.staking import STAKING_ADDRESS
from chain.core.accounts import transfer
from chain.core.contracts.dispatch import Call, Handler
from chain.core.contracts.params import ContractParams
from chain.core.record_codec import pack, unpack
from chain.core.state import Overlay
from chain.core.types import Address

_ADDRESS = Address(STAKING_ADDRESS)
_BOND = b"k/b"
_UNBONDING = b"k/u"
_TOTAL = b"k/t"
_PARAMS = b"k/p"


def initialise_staking(state: Overlay, params: ContractParams) -> None:
    """Write what genesis fixes."""
    state.set(_PARAMS, pack(params.unbond_blocks))


def get_bond(state: Overlay, owner: Address) -> int:
    """Return the active bond, wei."""
    return _get_number(state, _BOND + owner)


def _process_bond(call: Call) -> None:
    if call.value == 0:
        raise Refusal("ZeroAmount")
    state = call.turn.state
    state.set(_BOND + call.sender, pack(get_bond(state, call.sender) + call.value))
    state.set(_TOTAL, pack(_get_number(state, _TOTAL) + call.value))
    call.turn.emit(_ADDRESS, "Bonded", call.sender, call.value)


def _process_unbond(call: Call, amount: int) -> None:
    # CHECKS
    state = call.turn.state
    bond = get_bond(state, call.sender)
    if amount == 0:
        raise Refusal("ZeroAmount")
    if amount > bond:
        raise Refusal("InsufficientBond", amount, bond)
    # EFFECTS: a second unbonding starts the lock of the whole sum again, so one record an owner suffices
    unlock_height = call.turn.height + unpack(state.get(_PARAMS) or pack(0))
    freed, _ = _get_unbonding(state, call.sender)
    _set_number(state, _BOND + call.sender, bond - amount)
    _set_number(state, _TOTAL, _get_number(state, _TOTAL) - amount)
    state.set(_UNBONDING + call.sender, pack((freed + amount, unlock_height)))
    # EVENTS
    call.turn.emit(_ADDRESS, "Unbonded", call.sender, amount, unlock_height)


def _process_withdraw(call: Call) -> None:
    # CHECKS
    state = call.turn.state
    amount, unlock_height = _get_unbonding(state, call.sender)
    if amount == 0:
        raise Refusal("ZeroAmount")
    if call.turn.height < unlock_height:
        raise Refusal("NothingUnlocked", unlock_height, call.turn.height)
    # EFFECTS
    state.delete(_UNBONDING + call.sender)
    transfer(state, _ADDRESS, call.sender, amount)
    # EVENTS
    call.turn.emit(_ADDRESS, "Withdrawn", call.sender, amount)


def _view_bond_of(call: Call, owner: bytes) -> tuple[object, ...]:
    return (get_bond(call.turn.state, Address(owner)),)


def _view_unbonding_of(call: Call, owner: bytes) -> tuple[object, ...]:
    return _get_unbonding(call.turn.state, Address(owner))


def _view_total_bonded(call: Call) -> tuple[object, ...]:
    return (_get_number(call.turn.state, _TOTAL),)


def _view_unbond_blocks(call: Call) -> tuple[object, ...]:
    return (_get_number(call.turn.state, _PARAMS),)


STAKING_HANDLERS: dict[str, Handler] = {
    "bond": _process_bond,
    "unbond": _process_unbond,
    "withdraw": _process_withdraw,
    "bondOf": _view_bond_of,
    "unbondingOf": _view_unbonding_of,
    "totalBonded": _view_total_bonded,
    "unbondBlocks": _view_unbond_blocks,
}
"""By function name."""


def _get_number(state: Overlay, key: bytes) -> int:
    value = state.get(key)
    return int(unpack(value)) if value is not None else 0


def _set_number(state: Overlay, key: bytes, number: int) -> None:
    if number == 0:
        state.delete(key)
    else:
        state.set(key, pack(number))


def _get_unbonding(state: Overlay, owner: Address) -> tuple[int, int]:
    value = state.get(_UNBONDING + owner)
    if value is None:
        return 0, 0
    amount, unlock_height = unpack(value)
    return amount, unlock_height
