"""Ethereum's precompiled contracts as this chain runs them, each held to the speed that its gas pays for.

| address | | here |
|---|---|---|
| 1 ecrecover, 2 sha256, 3 ripemd160, 4 identity | | py-evm's |
| 5 modexp | EIP-198, 2565 | ours: bounded, and 0^0 = 1 also for an empty base |
| 6, 7, 8 alt_bn128 | EIP-196, 197, 1108 | ours (``bn254``): py-evm's cost thirty times what their gas pays for |
| 9 blake2f | EIP-152 | ours over blake2b-py: py-evm's takes eight times its calls' price to read |
| 0x0a point evaluation; 0x0b-0x11 BLS12-381 | EIP-4844, 2537 | arkworks |

Before rules 3 the last two groups and alt_bn128 revert, keep the gas that is left, and say so.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from blake2b import compress as blake2b_compress
from eth.abc import ComputationAPI
from eth.exceptions import Revert, VMError
from eth.vm.forks.prague.computation import PRAGUE_PRECOMPILES
from eth_abi.abi import encode as encode_abi

from chain.core.evm import bls12_precompiles, bn254_precompiles

Precompile = Callable[[ComputationAPI], Any]
"""Charges, reads ``msg`` and leaves its output on the computation."""

ERROR_SELECTOR = bytes.fromhex("08c379a0")
"""Of ``Error(string)``, Solidity's plain revert."""

CURVE_RULES = 3
"""The version of the rules from which on the precompiles of elliptic curves are there."""

_CURVES: dict[int, tuple[str, Precompile]] = {
    6: ("ecAdd", bn254_precompiles.add_points),
    7: ("ecMul", bn254_precompiles.multiply_point),
    8: ("ecPairing", bn254_precompiles.check_pairing),
    0x0A: ("KZG point evaluation", bls12_precompiles.evaluate_point),
    0x0B: ("BLS12_G1ADD", bls12_precompiles.add_g1),
    0x0C: ("BLS12_G1MSM", bls12_precompiles.sum_g1),
    0x0D: ("BLS12_G2ADD", bls12_precompiles.add_g2),
    0x0E: ("BLS12_G2MSM", bls12_precompiles.sum_g2),
    0x0F: ("BLS12_PAIRING_CHECK", bls12_precompiles.check_pairing),
    0x10: ("BLS12_MAP_FP_TO_G1", bls12_precompiles.map_to_g1),
    0x11: ("BLS12_MAP_FP2_TO_G2", bls12_precompiles.map_to_g2),
}
_BLAKE2F = struct.Struct("<4s8Q16Q2QB")
"""Rounds (big-endian), state, message, counters, whether this is the last block."""
_WORD_BYTES = 32
_HEAD_BYTES = 3 * _WORD_BYTES
_MODEXP_LEAST_GAS = 200
_MODEXP_DIVISOR = 3


def encode_reason(reason: str) -> bytes:
    """Return revert data that clients show as text."""
    return ERROR_SELECTOR + bytes(encode_abi(["string"], [reason]))


def modexp(computation: ComputationAPI) -> None:
    """Raise a number to a power modulo another (EIP-198), at the price of EIP-2565."""
    data = computation.msg.data
    base_bytes, exponent_bytes, modulus_bytes = (
        int.from_bytes(_read(data, start, _WORD_BYTES), "big") for start in (0, _WORD_BYTES, 2 * _WORD_BYTES)
    )
    exponent_start = _HEAD_BYTES + base_bytes
    head = int.from_bytes(_read(data, exponent_start, min(exponent_bytes, _WORD_BYTES)), "big")
    gas = compute_modexp_gas(base_bytes, exponent_bytes, modulus_bytes, head)
    computation.consume_gas(gas, reason="MODEXP")
    if modulus_bytes == 0:
        computation.output = b""
        return
    base = int.from_bytes(_read(data, _HEAD_BYTES, base_bytes), "big")
    exponent = int.from_bytes(_read(data, exponent_start, exponent_bytes), "big")
    modulus = int.from_bytes(_read(data, exponent_start + exponent_bytes, modulus_bytes), "big")
    power = pow(base, exponent, modulus) if modulus else 0
    computation.output = power.to_bytes(modulus_bytes, "big")


def compute_modexp_gas(base_bytes: int, exponent_bytes: int, modulus_bytes: int, exponent_head: int) -> int:
    """Return the price; ``exponent_head`` is the number in the exponent's first 32 bytes."""
    words = (max(base_bytes, modulus_bytes) + 7) >> 3
    iterations = max(exponent_head.bit_length() - 1, 0)
    if exponent_bytes > _WORD_BYTES:
        iterations += 8 * (exponent_bytes - _WORD_BYTES)
    return max(_MODEXP_LEAST_GAS, words * words * max(iterations, 1) // _MODEXP_DIVISOR)


def _read(data: bytes | memoryview, start: int, length: int) -> bytes:
    """Return calldata as if endless zeros followed; what was paid for bounds the length."""
    found = bytes(data[start : start + length])
    return found if len(found) == length else found.ljust(length, b"\0")


def blake2f(computation: ComputationAPI) -> None:
    """Do rounds of BLAKE2b's compression, at 1 gas each (EIP-152)."""
    data = computation.msg.data
    if len(data) != _BLAKE2F.size:
        raise VMError(f"Blake2 F: {len(data)} bytes, expected {_BLAKE2F.size}")
    words = _BLAKE2F.unpack(data)
    if words[-1] > 1:
        raise VMError(f"Blake2 F: the last byte is {words[-1]}, expected 0 or 1")
    rounds = int.from_bytes(data[:4], "big")
    computation.consume_gas(rounds, reason="Blake2 F")
    computation.output = blake2b_compress(rounds, words[1:9], words[9:25], words[25:27], bool(words[27]))


def _refuse(name: str) -> Precompile:
    data = encode_reason(f"the precompile {name} is there from rules {CURVE_RULES} on: this chain follows older ones")

    def refuse(computation: ComputationAPI) -> None:
        computation.output = data
        raise Revert(name)

    return refuse


def _address(number: int) -> bytes:
    return number.to_bytes(20, "big")


PRECOMPILES: dict[bytes, Precompile] = {
    **{address: PRAGUE_PRECOMPILES[address] for address in map(_address, (1, 2, 3, 4))},
    _address(9): blake2f,
    _address(5): modexp,
    **{_address(number): run for number, (_, run) in _CURVES.items()},
}
"""By address."""
_OLD_PRECOMPILES = {**PRECOMPILES, **{_address(number): _refuse(name) for number, (name, _) in _CURVES.items()}}


def choose_precompiles(rules: int) -> dict[bytes, Precompile]:
    """Return the precompiles under a version of the rules; the addresses are always the same."""
    return PRECOMPILES if rules >= CURVE_RULES else _OLD_PRECOMPILES
