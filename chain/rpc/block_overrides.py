"""Block overrides of a call (eth_call, eth_estimateGas): what the block would say of itself, for this call only.

As go-ethereum has them, under its names of today and of before: ``number``, ``time``, ``gasLimit``, ``feeRecipient``
(``coinbase``), ``prevRandao`` (``random``), ``baseFeePerGas`` (``baseFee``).  The state stays that of the block which
the call names.  A limit of gas is only what GASLIMIT says, a base fee what BASEFEE says: a call pays nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from chain.core.environment import BlockEnvironment
from chain.core.types import Address, Amount, Height
from chain.rpc.faults import InvalidParams
from chain.rpc.values import find_nearest, parse_data, parse_quantity

MAX_NUMBER = 2**63 - 1
MAX_TIME = 2**64 - 1
"""As go-ethereum: seconds of 64 bits."""

_OLD_NAMES = {"coinbase": "feeRecipient", "random": "prevRandao", "baseFee": "baseFeePerGas"}
_FIELDS = ("number", "time", "gasLimit", "feeRecipient", "prevRandao", "baseFeePerGas")
_ABSENT = {
    "difficulty": "there is none; prevRandao is what its opcode shows",
    "blobBaseFee": "there are no blobs on this chain",
    "beaconRoot": "there is no beacon chain",
    "withdrawals": "there is no beacon chain",
}


def override_block(environment: BlockEnvironment, value: Any) -> BlockEnvironment:
    """Return the block as a call wants it; raises InvalidParams."""
    if not isinstance(value, dict):
        raise InvalidParams(f"block overrides are {str(value)[:80]!r}, expected {{number, time, ...}}")
    chosen = _read_names(value)
    parameters = environment.parameters
    if "gasLimit" in chosen:
        parameters = replace(parameters, gas_limit=parse_quantity(chosen["gasLimit"], "gasLimit", MAX_NUMBER))
    if "baseFeePerGas" in chosen:
        parameters = replace(parameters, base_fee=Amount(parse_quantity(chosen["baseFeePerGas"], "baseFeePerGas")))
    number, time, recipient, seed = (chosen.get(name) for name in ("number", "time", "feeRecipient", "prevRandao"))
    return replace(
        environment,
        height=environment.height if number is None else Height(parse_quantity(number, "number", MAX_NUMBER)),
        time_seconds=environment.time_seconds if time is None else parse_quantity(time, "time", MAX_TIME),
        proposer=environment.proposer if recipient is None else Address(parse_data(recipient, "feeRecipient", 20)),
        block_seed=environment.block_seed if seed is None else parse_data(seed, "prevRandao", 32),
        parameters=parameters,
    )


def _read_names(value: dict[str, Any]) -> dict[str, Any]:
    """Return what is given, under the names of today."""
    chosen: dict[str, Any] = {}
    for name, each in value.items():
        if each is None:
            continue
        if name in _ABSENT:
            raise InvalidParams(f"block override {name} is not supported: {_ABSENT[name]}")
        known = _OLD_NAMES.get(name, name)
        if known not in _FIELDS:
            nearest = find_nearest(name, _FIELDS)
            advice = f"did you mean {nearest}?" if nearest else f"known are {', '.join(_FIELDS)}"
            raise InvalidParams(f"unknown block override {name[:40]!r}, {advice}")
        if known in chosen:
            raise InvalidParams(f"block overrides name {known} twice: give {known} alone")
        chosen[known] = each
    return chosen
