"""Bonds of owners, free again after a lock; slashed money is destroyed.

Invariant: the contract's balance is the sum of active bonds and of what is being freed.
"""

from __future__ import annotations

from chain.core.accounts import debit
from chain.core.contracts.staking.keys import STAKING, get_number, set_number
from chain.core.genesis import get_supply, set_supply
from chain.core.record_codec import pack, unpack
from chain.core.state import Base, Overlay
from chain.core.types import Address, Amount

PPM = 1_000_000
"""Parts of a whole in a slash fraction."""

_BOND = b"k/b"
_UNBONDING = b"k/u"
_TOTAL = b"k/t"


def get_bond(state: Base, owner: Address) -> int:
    """Return the active bond, wei."""
    return get_number(state, _BOND + owner)


def get_total(state: Base) -> int:
    """Return the sum of active bonds, wei."""
    return get_number(state, _TOTAL)


def get_unbonding(state: Base, owner: Address) -> tuple[int, int]:
    """Return (wei, height from which they are free) of what is being freed."""
    value = state.get(_UNBONDING + owner)
    if value is None:
        return 0, 0
    amount, unlock_height = unpack(value)
    return amount, unlock_height


def add_bond(state: Overlay, owner: Address, amount: int) -> None:
    """Add to a bond; the contract's account holds the money already."""
    set_number(state, _BOND + owner, get_bond(state, owner) + amount)
    set_number(state, _TOTAL, get_total(state) + amount)


def move_bond(state: Overlay, owner: Address, to: Address) -> None:
    """Make a bond somebody else's."""
    amount = get_bond(state, owner)
    set_number(state, _BOND + owner, 0)
    set_number(state, _BOND + to, get_bond(state, to) + amount)


def start_unbonding(state: Overlay, owner: Address, amount: int, unlock_height: int) -> None:
    """Move a part of a bond to what is being freed.

    A second unbonding starts the lock of the whole sum again, so one record an owner suffices.
    """
    freed, _ = get_unbonding(state, owner)
    set_number(state, _BOND + owner, get_bond(state, owner) - amount)
    set_number(state, _TOTAL, get_total(state) - amount)
    state.set(_UNBONDING + owner, pack((freed + amount, unlock_height)))


def end_unbonding(state: Overlay, owner: Address) -> None:
    """Forget what was freed; it has been paid."""
    state.delete(_UNBONDING + owner)


def process_slash(state: Overlay, owner: Address, ppm: int) -> int:
    """Destroy a fraction of a bond and of what is being freed; return the wei.

    Each part is rounded down: 50,000 ppm of 1,999 wei are 99.
    """
    bond = get_bond(state, owner)
    freed, unlock_height = get_unbonding(state, owner)
    from_bond, from_freed = bond * ppm // PPM, freed * ppm // PPM
    set_number(state, _BOND + owner, bond - from_bond)
    set_number(state, _TOTAL, get_total(state) - from_bond)
    if freed:
        state.set(_UNBONDING + owner, pack((freed - from_freed, unlock_height)))
    amount = from_bond + from_freed
    debit(state, STAKING, amount)
    set_supply(state, Amount(max(0, get_supply(state) - amount)))
    return amount
