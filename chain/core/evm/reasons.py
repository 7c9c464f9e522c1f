"""One readable line for a frame that failed; shown to people, no part of what is agreed."""

from __future__ import annotations

from eth import exceptions
from eth_abi.abi import decode as decode_abi
from eth_abi.exceptions import DecodingError

from chain.core.evm.precompiles import ERROR_SELECTOR

PANIC_SELECTOR = bytes.fromhex("4e487b71")
"""Of ``Panic(uint256)``, what the Solidity compiler puts in by itself."""

_PANICS = {
    0x01: "assertion failed",
    0x11: "arithmetic overflow or underflow",
    0x12: "division by zero",
    0x21: "no such enum value",
    0x22: "corrupt storage array",
    0x31: "pop of an empty array",
    0x32: "array index out of range",
    0x41: "out of memory",
    0x51: "call of an uninitialised function",
}
"""Solidity's documentation, "Panic via assert"."""
_MAX_REASON_LETTERS = 300

_WORDS: tuple[tuple[type[exceptions.VMError], str], ...] = (
    (exceptions.OutOfGas, "out of gas"),
    (exceptions.InvalidInstruction, "invalid opcode"),
    (exceptions.InvalidJumpDestination, "invalid jump destination"),
    (exceptions.InsufficientStack, "stack underflow"),
    (exceptions.FullStack, "stack overflow"),
    (exceptions.WriteProtection, "write in a static call"),
    (exceptions.ContractCreationCollision, "contract address collision"),
)


def describe_failure(error: exceptions.VMError, output: bytes) -> str:
    """Say why a frame failed."""
    if isinstance(error, exceptions.Revert):
        reason = decode_reason(output)
        return f"execution reverted: {reason}" if reason else "execution reverted"
    for kind, words in _WORDS:
        if isinstance(error, kind):
            return words
    return f"{type(error).__name__}: {error}"[:_MAX_REASON_LETTERS]


def decode_reason(output: bytes) -> str:
    """Read ``Error(string)`` and ``Panic(uint256)``; name the selector of a custom error."""
    selector, body = output[:4], output[4:]
    try:
        if selector == ERROR_SELECTOR:
            return str(decode_abi(["string"], body)[0])[:_MAX_REASON_LETTERS]
        if selector == PANIC_SELECTOR:
            code = int(decode_abi(["uint256"], body)[0])
            return f"panic 0x{code:02x} ({_PANICS.get(code, 'unknown')})"
    except (DecodingError, UnicodeDecodeError, OverflowError):
        return ""
    return f"custom error 0x{selector.hex()}" if len(selector) == 4 else ""
