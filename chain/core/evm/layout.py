"""Where the code and the slots of users' contracts lie in the state.

| key | value |
|---|---|
| ``c/`` address | code |
| ``e/`` address slot | 32-byte slot number in the key; value big-endian without leading zeros, never zero |

The account (``chain.core.accounts``) carries the code's keccak256.  Invariant: an address has a ``c/`` key exactly
when its account has a code hash, and ``e/`` keys only where its nonce isn't zero, so a new contract finds none.
"""

from __future__ import annotations

from chain.core import accounts
from chain.core.hashing import keccak256
from chain.core.state import Base, Overlay

CODE_PREFIX = b"c/"
SLOT_PREFIX = b"e/"

SYSTEM_CODE = b"\xfe"
"""INVALID: the code of a system contract, so that Solidity and clients see that there is one."""
_SLOT_BYTES = 32


def get_code(state: Base, address: bytes) -> bytes:
    """Return the code at an address, empty where there is none."""
    return state.get(CODE_PREFIX + address) or b""


def set_code(state: Overlay, address: bytes, code: bytes) -> None:
    """Put code at an address; empty code takes it away."""
    nonce, balance, _ = accounts.load_account(state, address)
    if code:
        state.set(CODE_PREFIX + address, code)
        accounts.save_account(state, address, nonce, balance, keccak256(code))
    else:
        state.delete(CODE_PREFIX + address)
        accounts.save_account(state, address, nonce, balance, b"")


def slot_key(address: bytes, slot: int) -> bytes:
    """Return the state key of a slot."""
    return SLOT_PREFIX + address + slot.to_bytes(_SLOT_BYTES, "big")


def get_slot(state: Base, address: bytes, slot: int) -> int:
    """Return the value of a slot, 0 where it was never written."""
    value = state.get(slot_key(address, slot))
    return 0 if value is None else int.from_bytes(value, "big")


def set_slot(state: Overlay, address: bytes, slot: int, value: int) -> None:
    """Write a slot; zero removes it."""
    if value:
        state.set(slot_key(address, slot), value.to_bytes((value.bit_length() + 7) >> 3, "big"))
    else:
        state.delete(slot_key(address, slot))


def delete_slots(state: Overlay, address: bytes) -> None:
    """Remove every slot of an address."""
    prefix = SLOT_PREFIX + address
    keys = [key for key, _ in state.iterate(prefix, prefix + b"\xff" * (_SLOT_BYTES + 1))]
    for key in keys:
        state.delete(key)
