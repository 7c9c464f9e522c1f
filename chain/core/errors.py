"""Every reason for which the chain refuses something, one class each.

    ChainError
    |-- InvalidTransaction             refused before execution: no receipt, no nonce used, no fee
    |   |-- MalformedTransaction       bytes that aren't canonical RLP of a known shape
    |   |-- TransactionTooLarge
    |   |-- UnsupportedTransactionType
    |   |-- UnprotectedTransaction     legacy without a chain id
    |   |-- WrongChainId
    |   |-- HighSignatureS
    |   |-- InvalidSignature
    |   |-- PriorityAboveMaxFee
    |   |-- FeeCapTooLow
    |   |-- IntrinsicGasTooLow
    |   |-- GasLimitTooHigh
    |   |-- BlockGasExhausted
    |   |-- NonceTooLow
    |   |-- NonceTooHigh
    |   |-- NonceAlreadyQueued
    |   |-- SenderQueueFull
    |   |-- QueueFull
    |   |-- GapQueueFull
    |   |-- InsufficientFunds
    |   |-- SenderIsContract           EIP-3607
    |   |-- InitcodeTooLarge           EIP-3860
    |   `-- EvmGasLimitTooHigh         more than the EVM's own meter of a block
    |-- InvalidGenesis
    |-- InvalidSnapshot
    `-- InvalidProof

``code`` is what CheckTx and the block's results carry, beside ``CODESPACE``; codes never change meaning (7 and 22
are retired).
"""

from __future__ import annotations

from typing import ClassVar

CODESPACE = "archipelago"
"""Name space of the codes below in ABCI results."""

_KNOWN_TYPES = {3: "EIP-4844, blobs", 4: "EIP-7702, set code"}
"""Of Ethereum, and not here."""

CODE_EXECUTION_FAILED = 1
"""Result code of a transaction that was executed and failed: it has a receipt with status 0."""


class ChainError(Exception):
    """Root of the tree."""


class InvalidTransaction(ChainError):
    """A transaction that can't be executed; it changes nothing."""

    code: ClassVar[int] = 2


class MalformedTransaction(InvalidTransaction):
    """The bytes aren't the canonical encoding of a transaction."""

    code = 3

    def __init__(self, reason: str) -> None:
        """Keep the reason."""
        super().__init__(
            f"malformed transaction: {reason};"
            " next: sign it again with a current library and send those bytes unchanged"
        )
        self.reason = reason


class TransactionTooLarge(InvalidTransaction):
    """Longer than the cap."""

    code = 4

    def __init__(self, limit_bytes: int, got_bytes: int) -> None:
        """Keep both sizes."""
        super().__init__(
            f"transaction of {got_bytes} bytes, at most {limit_bytes} are accepted; next: put large data into the store"
        )
        self.limit_bytes = limit_bytes
        self.got_bytes = got_bytes


class UnsupportedTransactionType(InvalidTransaction):
    """An EIP-2718 type that this chain doesn't know."""

    code = 5

    def __init__(self, got: int) -> None:
        """Keep the type."""
        known = _KNOWN_TYPES.get(got)
        name = f"{got} ({known})" if known else str(got)
        super().__init__(
            f"transaction type {name} is not supported;"
            " next: send type 2 (EIP-1559), type 1 (EIP-2930) or a legacy one with a chain id (EIP-155)"
        )
        self.got = got


class UnprotectedTransaction(InvalidTransaction):
    """A legacy transaction that every chain would accept."""

    code = 6

    def __init__(self, v: int) -> None:
        """Keep v."""
        super().__init__(f"legacy transaction without a chain id (v is {v}); next: sign it with EIP-155 or as type 2")
        self.v = v


class WrongChainId(InvalidTransaction):
    """Signed for another chain."""

    code = 8

    def __init__(self, expected: int, got: int) -> None:
        """Keep both ids."""
        super().__init__(
            f"transaction signed for chain id {got}, this is chain id {expected}; next: sign it for {expected}"
        )
        self.expected = expected
        self.got = got


class HighSignatureS(InvalidTransaction):
    """The malleable twin of a signature (EIP-2)."""

    code = 9

    def __init__(self, limit: int, got: int) -> None:
        """Keep both values."""
        super().__init__(
            f"signature s is {got:#x}, at most half the group order {limit:#x} is accepted; next: sign it again"
        )
        self.limit = limit
        self.got = got


class InvalidSignature(InvalidTransaction):
    """No public key answers to the signature."""

    code = 10

    def __init__(self, reason: str) -> None:
        """Keep the reason."""
        super().__init__(f"no sender can be recovered from the signature: {reason}; next: sign it again")
        self.reason = reason


class PriorityAboveMaxFee(InvalidTransaction):
    """The tip alone is more than the cap."""

    code = 11

    def __init__(self, max_fee: int, max_priority_fee: int) -> None:
        """Keep both values, wei a gas."""
        super().__init__(
            f"max priority fee {max_priority_fee} wei is above the max fee {max_fee} wei; next: raise maxFeePerGas"
        )
        self.max_fee = max_fee
        self.max_priority_fee = max_priority_fee


class FeeCapTooLow(InvalidTransaction):
    """Wouldn't pay the base fee."""

    code = 12

    def __init__(self, base_fee: int, got: int) -> None:
        """Keep both values, wei a gas."""
        super().__init__(f"max fee {got} wei a gas is below the base fee {base_fee} wei; next: raise maxFeePerGas")
        self.base_fee = base_fee
        self.got = got


class IntrinsicGasTooLow(InvalidTransaction):
    """The limit doesn't cover the transaction's own bytes."""

    code = 13

    def __init__(self, expected: int, got: int) -> None:
        """Keep both values, gas."""
        super().__init__(f"gas limit {got} is below the intrinsic gas {expected}; next: ask eth_estimateGas")
        self.expected = expected
        self.got = got


class GasLimitTooHigh(InvalidTransaction):
    """Could never fit into a block."""

    code = 14

    def __init__(self, limit: int, got: int) -> None:
        """Keep both values, gas."""
        super().__init__(
            f"gas limit {got} is above the block gas limit {limit}; next: ask eth_estimateGas, or split the work"
        )
        self.limit = limit
        self.got = got


class BlockGasExhausted(InvalidTransaction):
    """Doesn't fit into what is left of this block."""

    code = 15

    def __init__(self, left: int, got: int) -> None:
        """Keep both values, gas."""
        super().__init__(f"gas limit {got}, the block has {left} gas left; next: send it again")
        self.left = left
        self.got = got


class NonceTooLow(InvalidTransaction):
    """Already used."""

    code = 16

    def __init__(self, expected: int, got: int) -> None:
        """Keep both nonces."""
        super().__init__(
            f"nonce too low: nonce {got}, expected {expected};"
            f" next: look whether it is mined already, then use {expected}"
        )
        self.expected = expected
        self.got = got


class NonceTooHigh(InvalidTransaction):
    """Further ahead than the queue keeps, or a gap when executed."""

    code = 17

    def __init__(self, expected: int, got: int, gap_limit: int = 0) -> None:
        """Keep both nonces."""
        room = f", at most {gap_limit} ahead are kept" if gap_limit else ""
        super().__init__(f"nonce too high: nonce {got}, expected {expected}{room}; next: send nonce {expected} first")
        self.expected = expected
        self.got = got


class NonceAlreadyQueued(InvalidTransaction):
    """Another transaction of the sender waits under this nonce."""

    code = 18

    def __init__(self, nonce: int, queued: bytes) -> None:
        """Keep the nonce and the hash that holds it."""
        super().__init__(
            f"nonce {nonce} is taken by 0x{queued.hex()}, which waits for its block; next: use the next nonce"
        )
        self.nonce = nonce
        self.queued = queued


class SenderQueueFull(InvalidTransaction):
    """One sender has too many bytes waiting."""

    code = 19

    def __init__(self, limit_bytes: int, wanted_bytes: int) -> None:
        """Keep both sizes."""
        super().__init__(
            f"{wanted_bytes} bytes of this sender would wait, at most {limit_bytes};"
            " next: send it again when some are mined"
        )
        self.limit_bytes = limit_bytes
        self.wanted_bytes = wanted_bytes


class QueueFull(InvalidTransaction):
    """The node keeps no more."""

    code = 20

    def __init__(self, limit: int) -> None:
        """Keep the limit."""
        super().__init__(f"{limit} transactions wait already; next: send it again in a few blocks")
        self.limit = limit


class GapQueueFull(InvalidTransaction):
    """Comes before its sender's earlier ones, and there is no room for more of that kind."""

    code = 26

    def __init__(self, expected: int, got: int) -> None:
        """Keep both nonces."""
        super().__init__(
            f"nonce {got} waits for nonce {expected}, and no more such transactions are kept now; next: send nonce"
            f" {expected} first, then this one again"
        )
        self.expected = expected
        self.got = got


class InsufficientFunds(InvalidTransaction):
    """Gas limit x max fee + value is more than the balance."""

    code = 21

    def __init__(self, expected: int, got: int) -> None:
        """Keep both values, wei."""
        super().__init__(
            f"insufficient funds for gas * price + value: balance {got} wei, needed {expected} wei;"
            " next: fund the sender"
        )
        self.expected = expected
        self.got = got


class SenderIsContract(InvalidTransaction):
    """Signed by a key whose address holds code (EIP-3607)."""

    code = 23

    def __init__(self, sender: bytes) -> None:
        """Keep the address."""
        super().__init__(
            f"sender 0x{sender.hex()} is a contract, which acts only when called; next: send from a key's account"
        )
        self.sender = sender


class InitcodeTooLarge(InvalidTransaction):
    """A creation with more initcode than Ethereum allows (EIP-3860)."""

    code = 24

    def __init__(self, limit_bytes: int, got_bytes: int) -> None:
        """Keep both sizes."""
        super().__init__(f"initcode of {got_bytes} bytes, at most {limit_bytes} are accepted; next: split the contract")
        self.limit_bytes = limit_bytes
        self.got_bytes = got_bytes


class EvmGasLimitTooHigh(InvalidTransaction):
    """Leaves a user's contract more gas than the EVM has in a block."""

    code = 25

    def __init__(self, limit: int, got: int) -> None:
        """Keep both values, gas without the intrinsic gas."""
        super().__init__(
            f"gas limit leaves {got} for execution in the EVM, which has {limit} a block;"
            " next: ask eth_estimateGas, or lower it"
        )
        self.limit = limit
        self.got = got


class InvalidGenesis(ChainError):
    """The app_state of genesis.json is wrong."""

    next_step: ClassVar[str] = (
        "mend app_state; the keys are in chain/SPEC.md, Genesis, and `chain-node init` writes them"
    )


class InvalidProof(ChainError):
    """A state proof doesn't lead to the root."""

    def __init__(self, expected: bytes, got: bytes) -> None:
        """Keep both roots."""
        super().__init__(
            f"proof leads to root {got.hex()}, expected {expected.hex()}; next: ask another node, this one lies"
        )
        self.expected = expected
        self.got = got


class InvalidSnapshot(ChainError):
    """A snapshot's metadata or chunk isn't what the format says."""

    def __init__(self, reason: str) -> None:
        """Keep the reason."""
        super().__init__(f"snapshot: {reason}; next: take one of another node")
        self.reason = reason
