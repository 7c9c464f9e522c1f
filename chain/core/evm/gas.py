"""Gas that the EVM's own rules leave to whoever starts a frame (yellow paper 6.2; EIPs 2028, 2930, 3860, 7623, 3529).

Worked example: a creation with the initcode ``00 01`` needs 21,000 + 32,000 + 4 + 16 = 53,020 before its first
instruction, and 2 more for one word of initcode, which the frame charges itself.
"""

from __future__ import annotations

from chain.core.records import AccessList

TRANSACTION_GAS = 21_000
"""Of every transaction (yellow paper, G_transaction)."""
ZERO_BYTE_GAS = 4
"""Of a zero byte of calldata (G_txdatazero)."""
NONZERO_BYTE_GAS = 16
"""Of any other byte of calldata (EIP-2028)."""
CREATION_GAS = 32_000
"""Of a creation, on top (G_txcreate)."""
LISTED_ADDRESS_GAS = 2_400
"""Of an address in the access list (EIP-2930)."""
LISTED_SLOT_GAS = 1_900
"""Of a slot in the access list (EIP-2930)."""
INITCODE_WORD_GAS = 2
"""Of each 32 bytes of initcode (EIP-3860)."""
FLOOR_TOKEN_GAS = 10
"""Least price of a calldata token: a zero byte is one token, any other four (EIP-7623)."""
TOKENS_PER_NONZERO_BYTE = 4
SSTORE_WORK_GAS = 400
"""Of an SSTORE on the block's meter, at least: it takes some 40 us with tree and disk, as much gas of the slowest
opcodes 190 us."""
WORK_RULES = 3
"""The version of the rules from which on the meter counts work and no call without gas passes for a transfer."""
REFUND_DIVISOR = 5
"""At most a fifth of the gas used is refunded (EIP-3529)."""
MAX_INITCODE_BYTES = 49_152
"""Of a creation (EIP-3860): twice the largest code (EIP-170)."""

EVM_BLOCK_GAS = 6_000_000
"""Gas of all EVM execution in a block, without the intrinsic gas of its transactions: the EVM's own meter, by default.

It counts work: a write to a new slot costs 22,100 gas so that the state grows slowly, and takes no longer than 100
gas of arithmetic, so only SSTORE_WORK_GAS of it count.  The worst loops of opcodes run at 2.1 to 4.7 Mgas/s on one
core here, so a hostile block takes two to three seconds, an ordinary one some milliseconds.  Not less, so that the
largest code that EIP-170 allows (24,576 bytes: 4.9 M of deposit) can be deployed.  Native calls pay by work that was
measured and need no such limit.
"""


def compute_intrinsic_gas(data: bytes, *, is_creation: bool = False, access_list: AccessList = ()) -> int:
    """Return the gas that a transaction costs before it runs."""
    if not (data or is_creation or access_list):
        return TRANSACTION_GAS
    num_zeros = data.count(0)
    gas = TRANSACTION_GAS + ZERO_BYTE_GAS * num_zeros + NONZERO_BYTE_GAS * (len(data) - num_zeros)
    if is_creation:
        gas += CREATION_GAS
    for _, slots in access_list:
        gas += LISTED_ADDRESS_GAS + LISTED_SLOT_GAS * len(slots)
    return gas


def compute_floor_gas(data: bytes) -> int:
    """Return the least that a transaction with this calldata pays (EIP-7623); not asked of native calls."""
    num_zeros = data.count(0)
    tokens = num_zeros + TOKENS_PER_NONZERO_BYTE * (len(data) - num_zeros)
    return TRANSACTION_GAS + FLOOR_TOKEN_GAS * tokens


def compute_required_gas(data: bytes, *, is_creation: bool, is_native: bool, access_list: AccessList) -> int:
    """Return the least gas limit with which a transaction is accepted."""
    if not (data or is_creation or access_list):
        return TRANSACTION_GAS
    gas = compute_intrinsic_gas(data, is_creation=is_creation, access_list=access_list)
    if is_creation:
        gas += INITCODE_WORD_GAS * ((len(data) + 31) >> 5)
    return gas if is_native else max(gas, compute_floor_gas(data))
