"""The precompiles of elliptic curves against other people's: py_ecc through py-evm, and c-kzg."""

from __future__ import annotations

import hashlib
import random
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
from eth.exceptions import VMError
from eth.vm.forks.prague.computation import PRAGUE_PRECOMPILES
from hypothesis import given, settings
from hypothesis import strategies as st
from py_ecc import optimized_bn128
from py_ecc.optimized_bls12_381 import optimized_curve as bls

from chain.core.evm import bn254
from chain.core.evm.precompiles import PRECOMPILES, choose_precompiles

DRAW = random.Random(7)
FEW = settings(max_examples=15, deadline=None)


def run(table: Any, number: int, data: bytes) -> tuple[int, bytes | str]:
    """Run a precompile alone: the gas it took, and its output or "failed"."""
    charged: list[int] = []
    frame = SimpleNamespace(
        msg=SimpleNamespace(data=data, data_as_bytes=data),
        output=b"",
        consume_gas=lambda gas, reason="": charged.append(gas),
    )
    try:
        table[number.to_bytes(20, "big")](frame)
    except VMError:
        return -1, "failed"  # all gas is gone, whatever was charged
    return sum(charged), bytes(frame.output)


def compare(number: int, data: bytes) -> bytes | str:
    ours = run(PRECOMPILES, number, data)
    assert ours == run(PRAGUE_PRECOMPILES, number, data)
    return ours[1]


def words(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(32, "big") for number in numbers)


@cache
def point(scalar: int) -> bytes:
    """A multiple of the first generator of alt_bn128."""
    found = optimized_bn128.normalize(optimized_bn128.multiply(optimized_bn128.G1, scalar))
    return words(*(int(each) for each in found)) if scalar else bytes(64)


@cache
def twisted(scalar: int) -> bytes:
    """A multiple of the second."""
    if not scalar:
        return bytes(128)
    x, y = optimized_bn128.normalize(optimized_bn128.multiply(optimized_bn128.G2, scalar))
    return words(*(int(each) for part in (x, y) for each in reversed(part.coeffs)))


def test_the_final_power_is_a_multiple_of_the_true_one() -> None:
    """The identity that ``bn254`` takes from the paper, and the curve's polynomials."""
    u, p, order = bn254.U, bn254.P, bn254.ORDER
    assert order == 36 * u**4 + 36 * u**3 + 18 * u**2 + 6 * u + 1
    assert p == order + 6 * u**2
    a = 12 * u**3 + 6 * u**2 + 6 * u
    b = a - 2 * u
    power = (a + 6 * u**2 + 1) + b * p + a * p**2 + (b - 1) * p**3
    assert power == 2 * u * (6 * u**2 + 3 * u + 1) * ((p**4 - p**2 + 1) // order)
    assert order % (2 * u * (6 * u**2 + 3 * u + 1)) != 0


@pytest.mark.parametrize(
    "data",
    [
        b"", point(1), point(1) * 2, point(1) + point(bn254.ORDER - 1), point(0) + point(5), point(2) + point(3),
        point(7) + words(1), words(1, 1), words(bn254.P + 1, 2), words(1, bn254.P + 2), words(0, bn254.P),
        point(3)[:40], point(3) + point(4) + b"\xff" * 40,
    ],
)  # fmt: skip
def test_bn254_addition(data: bytes) -> None:
    compare(6, data)


@pytest.mark.parametrize("scalar", [0, 1, 2, 3, bn254.ORDER - 1, bn254.ORDER, bn254.ORDER + 1, 2**256 - 1])
def test_bn254_multiplication_at_the_edges(scalar: int) -> None:
    for start in (0, 1, 9):
        compare(7, point(start) + words(scalar))
    compare(7, words(1, 3, scalar))


@FEW
@given(st.integers(0, 2**256 - 1), st.integers(0, bn254.ORDER - 1))
def test_bn254_multiplication(scalar: int, start: int) -> None:
    compare(7, point(start) + words(scalar))


def test_bn254_pairings() -> None:
    one, zero = words(1), words(0)
    a, b = DRAW.randrange(bn254.ORDER), DRAW.randrange(bn254.ORDER)
    minus = point(bn254.ORDER - a * b % bn254.ORDER)
    assert compare(8, b"") == one
    assert compare(8, point(a) + twisted(b) + minus + twisted(1)) == one
    assert run(PRECOMPILES, 8, point(a) + twisted(b) + minus + twisted(2))[1] == zero
    for data in (point(0) + twisted(b), point(a) + twisted(0)):
        assert run(PRECOMPILES, 8, data)[1] == one
    assert run(PRECOMPILES, 8, (point(1) + twisted(1) + point(bn254.ORDER - 1) + twisted(1)) * 5)[1] == one
    assert run(PRECOMPILES, 8, (point(1) + twisted(1)) * 3 + point(bn254.ORDER - 3) + twisted(1))[1] == one


def test_invalid_bn254_pairings_fail() -> None:
    good = point(1) + twisted(1)
    wrong = [good[:-1], good + b"\0", words(1, 3) + twisted(1), point(1) + words(1, 2, 3, 4)]
    wrong += [point(1) + words(bn254.P, 0, 0, 0), words(bn254.P, 0) + twisted(1)]
    wrong.append(point(1) + stray_twist_point())
    for data in wrong:
        assert compare(8, data) == "failed"


def stray_twist_point() -> bytes:
    """Find a point on the twist, which is then hardly ever in the group: x until x^3 + 3/xi is a square."""
    p = bn254.P
    for real in range(1, 100):
        square = optimized_bn128.FQ2([real, 1]) ** 3 + optimized_bn128.b2
        a, b = (int(each) for each in square.coeffs)
        norm = pow(a * a + b * b, (p + 1) // 4, p)  # P = 3 modulo 4
        for half in ((a + norm) * pow(2, -1, p) % p, (a - norm) * pow(2, -1, p) % p):
            root = pow(half, (p + 1) // 4, p)
            found = optimized_bn128.FQ2([root, b * pow(2 * root, -1, p)])
            if found * found == square:
                return words(1, real, *(int(each) for each in reversed(found.coeffs)))
    raise AssertionError("no root among 100")


def number48(value: int) -> bytes:
    return value.to_bytes(64, "big")


def g1(scalar: int) -> bytes:
    x, y = bls.normalize(bls.multiply(bls.G1, scalar))
    return number48(int(x)) + number48(int(y)) if scalar else bytes(128)


def g2(scalar: int) -> bytes:
    x, y = bls.normalize(bls.multiply(bls.G2, scalar))
    return b"".join(number48(int(each)) for part in (x, y) for each in part.coeffs) if scalar else bytes(256)


STRAY_G1 = number48(0) + number48(2)
"""On y^2 = x^3 + 4, and of order 3."""
FIELD = bls.field_modulus


@pytest.mark.parametrize(
    ("number", "data"),
    [
        (0x0B, g1(1) + g1(2)), (0x0B, g1(1) + g1(bls.curve_order - 1)), (0x0B, g1(0) + g1(3)), (0x0B, g1(4) * 2),
        (0x0B, STRAY_G1 + g1(1)), (0x0B, g1(1)), (0x0B, number48(1) * 4), (0x0B, b"\1" + g1(1)[1:] + g1(2)),
        (0x0B, number48(FIELD) + number48(0) + g1(2)),
        (0x0C, g1(3) + words(5)), (0x0C, g1(3) + words(2**256 - 1) + g1(0) + words(4) + g1(7) + words(0)),
        (0x0C, STRAY_G1 + words(1)), (0x0C, b""), (0x0C, g1(3)),
        (0x0D, g2(1) + g2(2)), (0x0D, g2(0) + g2(0)), (0x0D, g2(5) * 2), (0x0D, g2(1)), (0x0D, bytes(511) + b"\1"),
        (0x0E, g2(3) + words(6) + g2(1) + words(bls.curve_order)), (0x0E, b""), (0x0E, number48(5) * 4 + words(1)),
        (0x0F, b""), (0x0F, STRAY_G1 + g2(1)), (0x0F, bytes(384)),
        (0x10, number48(0)), (0x10, number48(FIELD - 1)), (0x10, number48(FIELD)), (0x10, b"\1" + bytes(63)),
        (0x10, b""),
        (0x11, number48(3) + number48(4)), (0x11, number48(FIELD) + number48(4)), (0x11, number48(0)),
    ],
)  # fmt: skip
def test_bls12_precompile(number: int, data: bytes) -> None:
    compare(number, data)


def test_bls12_pairings() -> None:
    opposite = g1(bls.curve_order - 42)
    assert run(PRECOMPILES, 0x0F, g1(6) + g2(7) + opposite + g2(1)) == (102_900, words(1))
    assert run(PRECOMPILES, 0x0F, g1(6) + g2(7) + opposite + g2(2)) == (102_900, words(0))
    assert run(PRECOMPILES, 0x0F, g1(6) + g2(0) + g1(0) + g2(7)) == (102_900, words(1))


@settings(max_examples=200, deadline=None)
@given(st.integers(0x0A, 0x11), st.sampled_from([64, 128, 160, 192, 256, 288, 384, 512]), st.binary(max_size=40))
def test_invalid_bytes_fail_and_nothing_else(number: int, size: int, seed: bytes) -> None:
    filled = (seed + hashlib.sha256(seed).digest() * 16)[:size]
    for data in (filled, b"".join(bytes(16) + filled[at : at + 48] for at in range(0, size, 64))):
        gas, output = run(PRECOMPILES, number, data)
        assert (gas == -1) == (output == "failed")


def test_point_evaluation() -> None:
    """The polynomial through 77 i at the i-th of 4,096 places, committed to and proven by c-kzg 2.1.8."""
    commitment = bytes.fromhex(
        "b154743ba9ef185fb1bcf606c7be1f1138c3e6cec36d49b538299b8c5db88198c20991f349b1774f3c99cd353b147cba"
    )
    proof = bytes.fromhex(
        "a68f174295698130cd764a715fa9a0d8184acc962abccaef64bbba9789b60858951970bab5bdd3dd1effa07c827baeb4"
    )
    value = bytes.fromhex("11732e1d09bd0741b62e89f2ab11c7f8b87c94996c9ac419328f2d463b421754")
    versioned = b"\x01" + hashlib.sha256(commitment).digest()[1:]
    good = versioned + words(12345) + value + commitment + proof
    assert run(PRECOMPILES, 0x0A, good) == (50_000, words(4096, bls.curve_order))
    for at in (0, 40, 80, 110, 170):
        bad = good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :]
        assert run(PRECOMPILES, 0x0A, bad)[1] == "failed"
    beyond = good[:32] + words(12345 + bls.curve_order) + good[64:]
    for bad in (good[:-1], beyond, versioned + b"\xff" * 160):
        assert run(PRECOMPILES, 0x0A, bad)[1] == "failed"


def test_before_rules_3_they_say_that_they_are_not_there() -> None:
    assert set(choose_precompiles(2)) == set(choose_precompiles(3)) == set(PRAGUE_PRECOMPILES)
    frame = SimpleNamespace(msg=None, output=b"")
    with pytest.raises(VMError, match="ecAdd"):
        choose_precompiles(2)[(6).to_bytes(20, "big")](frame)  # type: ignore[arg-type]
    assert b"from rules 3 on" in frame.output
