"""Accounts: nonce, balance and code hash under one key each (yellow paper, 4.1).

Layout of the value, big-endian: nonce u64, balance u256, then of a contract the keccak256 of its code.  An account
that is all zero has no key.  The code itself and a contract's slots lie under keys of their own
(``chain.core.evm.layout``).  Invariant: money moves only through ``transfer``, ``credit`` and ``debit``, and
through the EVM's own ``set_balance``, which reports what it burned.
"""

from __future__ import annotations

from chain.core.state import Base, Overlay
from chain.core.types import Address, Amount, Nonce

ACCOUNT_PREFIX = b"a/"
"""Keys: prefix, then the 20-byte address."""

_NONCE_BYTES = 8
_BALANCE_BYTES = 32
_PLAIN_BYTES = _NONCE_BYTES + _BALANCE_BYTES
"""Length of an account without code."""


class InsufficientBalance(Exception):
    """An account holds less than it should pay."""

    def __init__(self, address: Address, expected: int, got: int) -> None:
        """Keep both values, wei."""
        super().__init__(f"balance of 0x{address.hex()} is {got} wei, needed {expected} wei")
        self.address = address
        self.expected = expected
        self.got = got


def get_nonce(state: Base, address: Address) -> Nonce:
    """Return the count of the account's executed transactions."""
    return Nonce(load_account(state, address)[0])


def get_balance(state: Base, address: Address) -> Amount:
    """Return the balance in wei."""
    return Amount(load_account(state, address)[1])


def get_account(state: Base, address: Address) -> tuple[Nonce, Amount]:
    """Return nonce and balance, of committed state too."""
    nonce, balance, _ = load_account(state, address)
    return Nonce(nonce), Amount(balance)


def get_code_hash(state: Base, address: bytes) -> bytes:
    """Return keccak256 of a contract's code, empty for an account without code."""
    value = state.get(ACCOUNT_PREFIX + address)
    return b"" if value is None else value[_PLAIN_BYTES:]


def bump_nonce(state: Overlay, address: Address) -> None:
    """Add one to the nonce."""
    nonce, balance, code_hash = load_account(state, address)
    save_account(state, address, nonce + 1, balance, code_hash)


def credit(state: Overlay, address: Address, amount: int) -> None:
    """Create money; only genesis and the fee rule may."""
    nonce, balance, code_hash = load_account(state, address)
    save_account(state, address, nonce, balance + amount, code_hash)


def debit(state: Overlay, address: Address, amount: int) -> None:
    """Take money out of an account, or raise InsufficientBalance."""
    nonce, balance, code_hash = load_account(state, address)
    if balance < amount:
        raise InsufficientBalance(address, amount, balance)
    save_account(state, address, nonce, balance - amount, code_hash)


def pay_for_turn(state: Overlay, address: Address, amount: int) -> None:
    """Do ``debit`` and ``bump_nonce`` in one step."""
    nonce, balance, code_hash = load_account(state, address)
    if balance < amount:
        raise InsufficientBalance(address, amount, balance)
    save_account(state, address, nonce + 1, balance - amount, code_hash)


def transfer(state: Overlay, sender: Address, to: Address, amount: int) -> None:
    """Move money, or raise InsufficientBalance and change nothing."""
    debit(state, sender, amount)
    credit(state, to, amount)


def load_account(state: Base, address: bytes) -> tuple[int, int, bytes]:
    """Return nonce, balance and code hash; zeros and empty where there is no account."""
    value = state.get(ACCOUNT_PREFIX + address)
    if value is None:
        return 0, 0, b""
    balance = int.from_bytes(value[_NONCE_BYTES:_PLAIN_BYTES], "big")
    return int.from_bytes(value[:_NONCE_BYTES], "big"), balance, value[_PLAIN_BYTES:]


def save_account(state: Overlay, address: bytes, nonce: int, balance: int, code_hash: bytes) -> None:
    """Write an account; for the executor and the EVM, everybody else moves money by name."""
    if nonce == 0 and balance == 0 and not code_hash:
        state.delete(ACCOUNT_PREFIX + address)
        return
    value = nonce.to_bytes(_NONCE_BYTES, "big") + balance.to_bytes(_BALANCE_BYTES, "big") + code_hash
    state.set(ACCOUNT_PREFIX + address, value)
