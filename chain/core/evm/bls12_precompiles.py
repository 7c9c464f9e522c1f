"""Precompiles 0x0a to 0x11: KZG point evaluation (EIP-4844) and operations on BLS12-381 (EIP-2537), by arkworks.

A number below the field's prime is 64 bytes, big-endian, the first 16 zero; a point of the first group is x, y, of the
second x0, x1, y0, y1 for x0 + x1 u; infinity is zeros.  What is malformed fails the frame and takes all its gas.
Additions check that a point is on the curve; all else also that it is in its group.  arkworks wants 48 bytes a number.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from eth.abc import ComputationAPI
from eth.exceptions import VMError
from eth.precompiles.bls12_381 import constants as prices
from py_arkworks_bls12381 import GT, G1Point, G2Point, Scalar

from chain.core.hashing import sha256

POINT_EVALUATION_GAS = 50_000
PAIRING_GAS = 37_700
PAIRING_GAS_A_PAIR = 32_600
SCALAR_MODULUS = 0x73EDA753299D7D483339D80809A1D80553BDA402FFFE5BFEFFFFFFFF00000001
"""The order of both groups: BLS_MODULUS of EIP-4844."""

_POINT_EVALUATION_OUTPUT = (4096).to_bytes(32, "big") + SCALAR_MODULUS.to_bytes(32, "big")
_TAU_G2 = bytes.fromhex(
    "b5bfd7dd8cdeb128843bc287230af38926187075cbfbefa81009a2ce615ac53d2914e5870cb452d2afaaab24f3499f72"
    "185cbfee53492714734429b7b38608e23926c911cceceac9a36851477ba4c60b087041de621000edc98edada20c1def2"
)
"""The secret's multiple of the second generator, from Ethereum's ceremony of 2023 (consensus-specs, trusted setup)."""
_VERSIONED_HASH_KZG = b"\x01"
_SCALAR_BYTES = 32
_NUMBER_BYTES = 64
_PAD = bytes(16)
_G1_BYTES = 2 * _NUMBER_BYTES
_G2_BYTES = 4 * _NUMBER_BYTES
_ONE = (1).to_bytes(32, "big")


def evaluate_point(computation: ComputationAPI) -> None:
    """Check that a committed polynomial has a value at a place: e(C - y, G2) = e(proof, tau - z)."""
    computation.consume_gas(POINT_EVALUATION_GAS, reason="point evaluation")
    data = computation.msg.data
    if len(data) != 192:
        raise VMError(f"point evaluation: {len(data)} bytes, expected 192")
    data = bytes(data)
    commitment, proof = data[96:144], data[144:]
    if data[:32] != _VERSIONED_HASH_KZG + sha256(commitment)[1:]:
        raise VMError("point evaluation: the commitment is not that of the versioned hash")
    place, value = (_read_canonical_scalar(data[start : start + 32]) for start in (32, 64))
    try:
        committed, witness = (G1Point.from_compressed_bytes(each) for each in (commitment, proof))
    except ValueError as error:
        raise VMError(f"point evaluation: {error}") from error
    left = committed - G1Point() * value
    right = _load_tau() - G2Point() * place
    if not GT.pairing_check([left, -witness], [G2Point(), right]):
        raise VMError("point evaluation: the proof is wrong")
    computation.output = _POINT_EVALUATION_OUTPUT


def add_g1(computation: ComputationAPI) -> None:
    """BLS12_G1ADD."""
    data = _take(computation, 2 * _G1_BYTES, prices.BLS12_G1_ADD_GAS)
    computation.output = _encode_g1(_read_g1(data[:_G1_BYTES]) + _read_g1(data[_G1_BYTES:]))


def add_g2(computation: ComputationAPI) -> None:
    """BLS12_G2ADD."""
    data = _take(computation, 2 * _G2_BYTES, prices.BLS12_G2_ADD_GAS)
    computation.output = _encode_g2(_read_g2(data[:_G2_BYTES]) + _read_g2(data[_G2_BYTES:]))


def sum_g1(computation: ComputationAPI) -> None:
    """BLS12_G1MSM."""
    points, scalars = [], []
    for entry in _take_many(computation, _G1_BYTES + _SCALAR_BYTES, prices.BLS12_G1_MSM_GAS, prices.G1_MSM_DISCOUNTS):
        points.append(_check_group(_read_g1(entry[:_G1_BYTES])))
        scalars.append(Scalar.from_be_bytes_mod_order(entry[_G1_BYTES:]))
    computation.output = _encode_g1(G1Point.multiexp_unchecked(points, scalars))


def sum_g2(computation: ComputationAPI) -> None:
    """BLS12_G2MSM."""
    points, scalars = [], []
    for entry in _take_many(computation, _G2_BYTES + _SCALAR_BYTES, prices.BLS12_G2_MSM_GAS, prices.G2_MSM_DISCOUNTS):
        points.append(_check_group(_read_g2(entry[:_G2_BYTES])))
        scalars.append(Scalar.from_be_bytes_mod_order(entry[_G2_BYTES:]))
    computation.output = _encode_g2(G2Point.multiexp_unchecked(points, scalars))


def check_pairing(computation: ComputationAPI) -> None:
    """BLS12_PAIRING_CHECK."""
    count = _count(computation, _G1_BYTES + _G2_BYTES)
    computation.consume_gas(PAIRING_GAS + PAIRING_GAS_A_PAIR * count, reason="BLS12_PAIRING_CHECK")
    entries = _split(computation, _G1_BYTES + _G2_BYTES)
    first = [_check_group(_read_g1(entry[:_G1_BYTES])) for entry in entries]
    second = [_check_group(_read_g2(entry[_G1_BYTES:])) for entry in entries]
    computation.output = _ONE if GT.pairing_check(first, second) else bytes(32)


def map_to_g1(computation: ComputationAPI) -> None:
    """BLS12_MAP_FP_TO_G1."""
    data = _take(computation, _NUMBER_BYTES, prices.BLS12_MAP_FP_G1_GAS)
    try:
        point = G1Point.map_from_fp_be(_strip(data))
    except ValueError as error:
        raise VMError(f"BLS12_MAP_FP_TO_G1: {error}") from error
    computation.output = _encode_g1(point)


def map_to_g2(computation: ComputationAPI) -> None:
    """BLS12_MAP_FP2_TO_G2."""
    data = _take(computation, 2 * _NUMBER_BYTES, prices.BLS12_MAP_FP2_G2_GAS)
    try:
        point = G2Point.map_from_fp2_be(_strip(data[:_NUMBER_BYTES]) + _strip(data[_NUMBER_BYTES:]))
    except ValueError as error:
        raise VMError(f"BLS12_MAP_FP2_TO_G2: {error}") from error
    computation.output = _encode_g2(point)


@cache
def _load_tau() -> G2Point:
    return G2Point.from_compressed_bytes(_TAU_G2)


def _take(computation: ComputationAPI, num_bytes: int, gas: int) -> bytes:
    data = computation.msg.data
    if len(data) != num_bytes:
        raise VMError(f"BLS12-381: {len(data)} bytes, expected {num_bytes}")
    computation.consume_gas(gas, reason="BLS12-381")
    return bytes(data)


def _count(computation: ComputationAPI, num_bytes: int) -> int:
    length = len(computation.msg.data)
    if not length or length % num_bytes:
        raise VMError(f"BLS12-381: {length} bytes are no positive multiple of {num_bytes}")
    return length // num_bytes


def _split(computation: ComputationAPI, num_bytes: int) -> list[bytes]:
    """Cut what was paid for into entries."""
    data = computation.msg.data_as_bytes
    return [data[start : start + num_bytes] for start in range(0, len(data), num_bytes)]


def _take_many(computation: ComputationAPI, num_bytes: int, gas: int, discounts: list[int]) -> list[bytes]:
    """Charge a sum of products: the more, the cheaper each (EIP-2537, the discount table)."""
    count = _count(computation, num_bytes)
    discount = discounts[min(count, len(discounts)) - 1]
    computation.consume_gas(count * gas * discount // prices.MSM_MULTIPLIER, reason="BLS12-381")
    return _split(computation, num_bytes)


def _strip(number: bytes) -> bytes:
    if number[:16] != _PAD:
        raise VMError("BLS12-381: a number does not begin with 16 zero bytes")
    return number[16:]


def _read_g1(data: bytes) -> G1Point:
    x, y = _strip(data[:_NUMBER_BYTES]), _strip(data[_NUMBER_BYTES:])
    if not any(data):
        return G1Point.identity()
    try:
        return G1Point.from_xy_bytes_unchecked_be(x + y)
    except ValueError as error:
        raise VMError(f"BLS12-381: {error}") from error


def _read_g2(data: bytes) -> G2Point:
    x0, x1, y0, y1 = (_strip(data[start : start + _NUMBER_BYTES]) for start in range(0, _G2_BYTES, _NUMBER_BYTES))
    if not any(data):
        return G2Point.identity()
    try:
        return G2Point.from_xy_bytes_unchecked_be(x0 + x1 + y0 + y1)
    except ValueError as error:
        raise VMError(f"BLS12-381: {error}") from error


def _check_group(point: Any) -> Any:
    if not point.is_in_subgroup():
        raise VMError("BLS12-381: the point is not in the group")
    return point


def _read_canonical_scalar(data: bytes) -> Scalar:
    if int.from_bytes(data, "big") >= SCALAR_MODULUS:
        raise VMError("point evaluation: a number is not below the modulus")
    return Scalar.from_be_bytes_mod_order(data)


def _encode_g1(point: G1Point) -> bytes:
    data = point.to_xy_bytes_be()
    return b"".join(_PAD + data[start : start + 48] for start in range(0, 96, 48))


def _encode_g2(point: G2Point) -> bytes:
    data = point.to_xy_bytes_be()
    return b"".join(_PAD + data[start : start + 48] for start in range(0, 192, 48))
