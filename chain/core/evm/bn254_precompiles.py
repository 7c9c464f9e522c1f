"""Precompiles 6, 7 and 8: addition, multiplication and pairing check on alt_bn128 (EIPs 196, 197; gas: EIP-1108).

A number is 32 bytes, big-endian; a point is x, y, and infinity is two zeros.  An element of Fp2 puts the factor of i
first.  Calldata of 6 and 7 goes on with zeros.  What is no point, or a coordinate of P and more, fails the frame and
takes all its gas, as on Ethereum.
"""

from __future__ import annotations

from eth.abc import ComputationAPI
from eth.exceptions import VMError

from chain.core.evm import bn254

ADD_GAS = 150
MULTIPLY_GAS = 6_000
PAIRING_GAS = 45_000
PAIRING_GAS_A_PAIR = 34_000

_WORD_BYTES = 32
_PAIR_BYTES = 6 * _WORD_BYTES


def add_points(computation: ComputationAPI) -> None:
    """Add two points (ecAdd)."""
    computation.consume_gas(ADD_GAS, reason="ecAdd")
    words = _read_words(computation.msg.data, 4)
    computation.output = _encode_point(bn254.add(_read_point(words[0], words[1]), _read_point(words[2], words[3])))


def multiply_point(computation: ComputationAPI) -> None:
    """Multiply a point by a number (ecMul)."""
    computation.consume_gas(MULTIPLY_GAS, reason="ecMul")
    x, y, scalar = _read_words(computation.msg.data, 3)
    computation.output = _encode_point(bn254.multiply(_read_point(x, y), scalar))


def check_pairing(computation: ComputationAPI) -> None:
    """Say whether a product of pairings is one (ecPairing)."""
    data = computation.msg.data
    num_pairs, rest = divmod(len(data), _PAIR_BYTES)
    if rest:
        raise VMError(f"ecPairing: {len(data)} bytes are no multiple of {_PAIR_BYTES}")
    computation.consume_gas(PAIRING_GAS + PAIRING_GAS_A_PAIR * num_pairs, reason="ecPairing")
    pairs: list[tuple[bn254.Point, bn254.TwistPoint]] = []
    for index in range(num_pairs):
        x, y, *twisted = _read_words(data[index * _PAIR_BYTES : (index + 1) * _PAIR_BYTES], 6)
        pairs.append((_read_point(x, y), _read_twist_point(twisted)))
    computation.output = bn254.is_product_one(pairs).to_bytes(_WORD_BYTES, "big")


def _read_words(data: bytes | memoryview, count: int) -> list[int]:
    padded = bytes(data[: count * _WORD_BYTES]).ljust(count * _WORD_BYTES, b"\0")
    return [int.from_bytes(padded[index : index + _WORD_BYTES], "big") for index in range(0, len(padded), _WORD_BYTES)]


def _read_point(x: int, y: int) -> bn254.Point:
    if x >= bn254.P or y >= bn254.P:
        raise VMError("alt_bn128: a coordinate is not below the field's prime")
    point = (x, y) if x or y else None
    if not bn254.is_on_curve(point):
        raise VMError("alt_bn128: the point is not on the curve")
    return point


def _read_twist_point(words: list[int]) -> bn254.TwistPoint:
    if any(word >= bn254.P for word in words):
        raise VMError("alt_bn128: a coordinate is not below the field's prime")
    x_imaginary, x_real, y_imaginary, y_real = words
    point = ((x_real, x_imaginary), (y_real, y_imaginary)) if any(words) else None
    if not bn254.is_in_twist_group(point):
        raise VMError("alt_bn128: the point is not in the second group")
    return point


def _encode_point(point: bn254.Point) -> bytes:
    return b"".join(coordinate.to_bytes(_WORD_BYTES, "big") for coordinate in point or (0, 0))
