"""The shapes of Ethereum's public JSON-RPC specification (execution-apis), as this chain answers: a table in own words.

A shape is a pattern (text), a type, ``None`` (null), ``[shape]`` (a list of it), ``{name: shape}`` (an object with
exactly these fields; ``"name?"`` may be missing), or ``AnyOf``.  There are no blobs, withdrawals and beacon roots here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

QUANTITY = re.compile(r"0x(0|[1-9a-f][0-9a-f]*)$")
DATA = re.compile(r"0x([0-9a-f]{2})*$")
HASH = re.compile(r"0x[0-9a-f]{64}$")
ADDRESS = re.compile(r"0x[0-9a-f]{40}$")
BLOOM = re.compile(r"0x[0-9a-f]{512}$")
NONCE = re.compile(r"0x[0-9a-f]{16}$")
SLOT = re.compile(r"0x[0-9a-f]{1,64}$")
DECIMAL = re.compile(r"(0|[1-9][0-9]*)$")


@dataclass(frozen=True)
class AnyOf:
    """One of several shapes."""

    shapes: tuple[Any, ...]


def nullable(shape: Any) -> AnyOf:
    return AnyOf((shape, None))


ACCESS_LIST = [{"address": ADDRESS, "storageKeys": [HASH]}]
LOG: dict[str, Any] = {
    "address": ADDRESS, "topics": [HASH], "data": DATA, "blockNumber": QUANTITY, "blockHash": HASH,
    "blockTimestamp": QUANTITY, "transactionHash": HASH, "transactionIndex": QUANTITY, "logIndex": QUANTITY,
    "removed": bool,
}  # fmt: skip
_PLACE: dict[str, Any] = {"blockHash": HASH, "blockNumber": QUANTITY, "transactionIndex": QUANTITY}
LEGACY_TRANSACTION: dict[str, Any] = {
    "hash": HASH, "type": QUANTITY, "chainId": QUANTITY, "nonce": QUANTITY, "from": ADDRESS, "to": nullable(ADDRESS),
    "value": QUANTITY, "input": DATA, "gas": QUANTITY, "gasPrice": QUANTITY, "v": QUANTITY, "r": QUANTITY,
    "s": QUANTITY, **_PLACE,
}  # fmt: skip
LISTED_TRANSACTION = {**LEGACY_TRANSACTION, "accessList": ACCESS_LIST, "yParity": QUANTITY}
TRANSACTION = {**LISTED_TRANSACTION, "maxFeePerGas": QUANTITY, "maxPriorityFeePerGas": QUANTITY}
ANY_TRANSACTION = AnyOf((TRANSACTION, LISTED_TRANSACTION, LEGACY_TRANSACTION))
HEADER: dict[str, Any] = {
    "number": QUANTITY, "hash": HASH, "parentHash": HASH, "nonce": NONCE, "mixHash": HASH, "sha3Uncles": HASH,
    "logsBloom": BLOOM, "transactionsRoot": HASH, "stateRoot": HASH, "receiptsRoot": HASH, "miner": ADDRESS,
    "difficulty": QUANTITY, "extraData": DATA, "size": QUANTITY, "gasLimit": QUANTITY, "gasUsed": QUANTITY,
    "timestamp": QUANTITY, "baseFeePerGas": QUANTITY,
}  # fmt: skip
BLOCK = {**HEADER, "transactions": [HASH], "uncles": [HASH]}
FULL_BLOCK = {**BLOCK, "transactions": [ANY_TRANSACTION]}
RECEIPT: dict[str, Any] = {
    "transactionHash": HASH, **_PLACE, "from": ADDRESS, "to": nullable(ADDRESS), "type": QUANTITY, "status": QUANTITY,
    "gasUsed": QUANTITY, "cumulativeGasUsed": QUANTITY, "effectiveGasPrice": QUANTITY,
    "contractAddress": nullable(ADDRESS), "logs": [LOG], "logsBloom": BLOOM,
    "revertReason?": DATA, "error?": str,
}  # fmt: skip
"""The last two are ours, of failed transactions only."""
PROOF: dict[str, Any] = {
    "address": ADDRESS, "balance": QUANTITY, "codeHash": HASH, "nonce": QUANTITY, "storageHash": HASH,
    "accountProof": [DATA], "storageProof": [{"key": SLOT, "value": QUANTITY, "proof": [DATA]}],
    "blockNumber": QUANTITY,
}  # fmt: skip
"""``blockNumber`` is ours: the block whose state root it proves against."""
FEE_HISTORY: dict[str, Any] = {
    "oldestBlock": QUANTITY, "baseFeePerGas": [QUANTITY], "gasUsedRatio": [AnyOf((float, int))],
    "reward?": [[QUANTITY]],
}  # fmt: skip


def check(shown: Any, shape: Any, path: str = "result") -> None:
    """Raise AssertionError where an answer has another shape."""
    reason = find_fault(shown, shape, path)
    assert reason is None, reason


def find_fault(shown: Any, shape: Any, path: str) -> str | None:
    """Return where an answer has another shape, None where it fits."""
    if shape is None:
        return None if shown is None else f"{path} is {shown!r}, expected null"
    if isinstance(shape, AnyOf):
        faults = [find_fault(shown, each, path) for each in shape.shapes]
        return None if None in faults else "; ".join(str(fault) for fault in faults)
    if isinstance(shape, re.Pattern):
        fits = isinstance(shown, str) and shape.match(shown)
        return None if fits else f"{path} is {shown!r}, expected {shape.pattern}"
    if isinstance(shape, type):
        return None if isinstance(shown, shape) else f"{path} is {shown!r}, expected {shape.__name__}"
    if isinstance(shape, list):
        if not isinstance(shown, list):
            return f"{path} is {shown!r}, expected a list"
        faults = [find_fault(item, shape[0], f"{path}[{index}]") for index, item in enumerate(shown)]
        return next((fault for fault in faults if fault), None)
    if not isinstance(shown, dict):
        return f"{path} is {shown!r}, expected an object"
    known = {name.removesuffix("?"): (name, each) for name, each in shape.items()}
    if set(shown) - set(known):
        return f"{path} has {sorted(set(shown) - set(known))}, which the schema doesn't know"
    for name, (declared, each) in known.items():
        if name not in shown:
            if not declared.endswith("?"):
                return f"{path} has no {name}"
            continue
        fault = find_fault(shown[name], each, f"{path}.{name}")
        if fault:
            return fault
    return None
