"""Accounts: nonce and balance under one key each (yellow paper, 4.1).

Layout of the value, big-endian: nonce u64, balance u256.  An account that is all zero has no key.
Invariant: money moves only through ``transfer``, ``credit`` and ``debit``.
"""

from __future__ import annotations

from chain.core.state import Base, Overlay
from chain.core.types import Address, Amount, Nonce

ACCOUNT_PREFIX = b"a/"
"""Keys: prefix, then the 20-byte address."""

_NONCE_BYTES = 8
_BALANCE_BYTES = 32


class InsufficientBalance(Exception):
    """An account holds less than it should pay."""

    def __init__(self, address: Address, expected: int, got: int) -> None:
        """Keep both values, wei."""
        super().__init__(f"balance of 0x{address.hex()} is {got} wei, needed {expected} wei")
        self.address = address
        self.expected = expected
        self.got = got


def get_nonce(state: Overlay, address: Address) -> Nonce:
    """Return the count of the account's executed transactions."""
    return Nonce(_load(state, address)[0])


def get_balance(state: Overlay, address: Address) -> Amount:
    """Return the balance in wei."""
    return Amount(_load(state, address)[1])


def get_account(state: Base, address: Address) -> tuple[Nonce, Amount]:
    """Return nonce and balance, of committed state too."""
    nonce, balance = _load(state, address)
    return Nonce(nonce), Amount(balance)


def bump_nonce(state: Overlay, address: Address) -> None:
    """Add one to the nonce."""
    nonce, balance = _load(state, address)
    _save(state, address, nonce + 1, balance)


def credit(state: Overlay, address: Address, amount: int) -> None:
    """Create money; only genesis and the fee rule may."""
    nonce, balance = _load(state, address)
    _save(state, address, nonce, balance + amount)


def debit(state: Overlay, address: Address, amount: int) -> None:
    """Take money out of an account, or raise InsufficientBalance."""
    nonce, balance = _load(state, address)
    if balance < amount:
        raise InsufficientBalance(address, amount, balance)
    _save(state, address, nonce, balance - amount)


def pay_for_turn(state: Overlay, address: Address, amount: int) -> None:
    """Do ``debit`` and ``bump_nonce`` in one step."""
    nonce, balance = _load(state, address)
    if balance < amount:
        raise InsufficientBalance(address, amount, balance)
    _save(state, address, nonce + 1, balance - amount)


def transfer(state: Overlay, sender: Address, to: Address, amount: int) -> None:
    """Move money, or raise InsufficientBalance and change nothing."""
    debit(state, sender, amount)
    credit(state, to, amount)


def _load(state: Base, address: Address) -> tuple[int, int]:
    value = state.get(ACCOUNT_PREFIX + address)
    if value is None:
        return 0, 0
    return int.from_bytes(value[:_NONCE_BYTES], "big"), int.from_bytes(value[_NONCE_BYTES:], "big")


def _save(state: Overlay, address: Address, nonce: int, balance: int) -> None:
    if nonce == 0 and balance == 0:
        state.delete(ACCOUNT_PREFIX + address)
        return
    value = nonce.to_bytes(_NONCE_BYTES, "big") + balance.to_bytes(_BALANCE_BYTES, "big")
    state.set(ACCOUNT_PREFIX + address, value)
