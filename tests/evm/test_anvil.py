"""The same transactions on this chain and on anvil: status, gas, logs, return data, addresses, code and slots."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from evm_pair import Anvil, Pair, bytecode, calldata

from chain.core.evm.addresses import compute_create_address
from chain.core.hashing import keccak256
from chain.core.types import Address

pytestmark = pytest.mark.integration

HEIR = b"\x1e" * 20
"""Has nothing and no code."""


@pytest.fixture(scope="module")
def pair(anvil: Anvil) -> Pair:
    """Both, with one funded key."""
    return Pair(anvil, b"\x31" * 32)


@pytest.fixture(scope="module")
def scenarios(pair: Pair, solidity: dict[str, Any]) -> Address:
    """The contract of Scenarios.sol, rich, with a child."""
    address = compute_create_address(pair.sender, pair.nonce)
    receipt = pair.compare(None, bytecode(solidity["Scenarios"]), value=10**18)
    assert receipt.status == 1
    pair.compare(address, calldata("make(uint256,uint256)", 5, 1_000))
    pair.compare_account(address, 0, 3)
    return address


def _child(pair: Pair, scenarios: Address) -> bytes:
    return bytes(pair.call(scenarios, calldata("child()")).output[12:])


@pytest.mark.parametrize(
    ("call", "fields", "status"),
    [
        (("set(uint256,uint256)", 1, 5), {}, 1),
        (("set(uint256,uint256)", 1, 5), {"value": 3}, 1),
        (("set(uint256,uint256)", 1, 0), {}, 1),
        (("set(uint256,uint256)", 1, 5), {"gas": 30_000}, 0),
        (("setAndReset(uint256,uint256,uint256)", 2, 9, 0), {}, 1),
        (("fill(uint256,uint256)", 10, 40), {}, 1),
        (("clear(uint256,uint256)", 10, 40), {}, 1),
        (("push(uint256)", 3), {}, 1),
        (("emitLogs(uint256)", 3), {}, 1),
        (("failWithReason(string)", "not today"), {}, 0),
        (("failWithCustom()",), {"value": 9}, 0),
        (("failWithPanic(uint256,uint256,uint256)", 1, 2, 0), {}, 0),
        (("failWithPanic(uint256,uint256,uint256)", 1, 0, 1), {}, 0),
        (("failWithPanic(uint256,uint256,uint256)", 77, 0, 2), {}, 0),
        (("failWithPanic(uint256,uint256,uint256)", 1, 2, 3), {}, 0),
        (("spin()",), {"gas": 300_000}, 0),
        (("invalid()",), {"gas": 200_000}, 0),
        (("unknown()",), {}, 0),
        (("make(uint256,uint256)", 13, 0), {}, 0),
        (("make(uint256,uint256)", 6, 50), {}, 1),
        (("make2(uint256,bytes32)", 8, b"\x08" * 32), {}, 1),
        (("make2(uint256,bytes32)", 8, b"\x08" * 32), {}, 0),
        (("tryMake2Twice(bytes32)", b"\x09" * 32), {}, 1),
        (("tryMake(uint256)", 13), {}, 1),
        (("tryMake(uint256)", 14), {}, 1),
        (("catchRefusal(uint256)", 4), {"value": 12}, 1),
        (("nested(uint256)", 2), {}, 0),
        (("nested(uint256)", 5), {}, 1),
        (("pass(uint256,uint256,uint256)", 4, 100, 100_000), {}, 1),
        (("pass(uint256,uint256,uint256)", 4, 100, 10), {}, 0),
        (("pass(uint256,uint256,uint256)", 4, 10**30, 100_000), {}, 0),
        (("send(address,uint256)", "0x" + HEIR.hex(), 5), {}, 1),
        (("send(address,uint256)", "0x" + (b"\x31" * 20).hex(), 0), {}, 1),
        (("transient(uint256,uint256)", 7, 9), {}, 1),
        (("transient(uint256,uint256)", 7, 10), {}, 1),
        (("destroyFresh(address,uint256)", "0x" + HEIR.hex(), 77), {}, 1),
        (("destroyIntoItself(uint256)", 78), {}, 1),
        (("destroyOld(address)", "0x" + HEIR.hex()), {}, 1),
        (("look(address)", "0x" + HEIR.hex()), {}, 1),
        (("look(address)", "0x" + "00" * 19 + "02"), {}, 1),
        (("look(address)", "0x" + "ee" * 20), {}, 1),
        (("deep(uint256)", 30), {}, 1),
        (("deep(uint256)", 400), {}, 1),
        (("probe(address,uint256,uint256)", "0x" + "ee" * 20, 1, 0), {}, 1),
        (("probe(address,uint256,uint256)", "0x" + "ed" * 20, 10**40, 50_000), {}, 1),
    ],
    ids=lambda value: "-".join(map(str, value))[:60] if isinstance(value, tuple) else None,
)
def test_solidity_scenario(
    call: tuple[Any, ...], fields: dict[str, Any], status: int, pair: Pair, scenarios: Address
) -> None:
    receipt = pair.compare(scenarios, calldata(*call), **fields)
    assert receipt.status == status
    pair.compare_account(scenarios, 0, 2, 3, 200, 201, 202, _table(1), _table(2), _table(10), _table(49))
    pair.compare_account(HEIR)


def _table(key: int) -> int:
    return int.from_bytes(keccak256(key.to_bytes(32, "big") + (1).to_bytes(32, "big")), "big")


@pytest.mark.parametrize("way", ["delegate", "callcode", "staticCall", "plainCall"])
@pytest.mark.parametrize(
    "inner", [("keep(uint256)", 3), ("refuse(uint256)", 3), ("kept()",), ("maker()",), ("nothing()",)], ids=str
)
def test_ways_to_call(way: str, inner: tuple[Any, ...], pair: Pair, scenarios: Address) -> None:
    child = _child(pair, scenarios)
    fields = {} if way == "staticCall" else {"value": 2}
    pair.compare(scenarios, calldata(f"{way}(address,bytes)", "0x" + child.hex(), calldata(*inner)), **fields)
    pair.compare_account(child, 0)
    pair.compare_account(scenarios, 0)


SIGNED_HASH = bytes.fromhex("456e9aea5e197a1f1af7a3e85a3212fa4049a3ba34c2289b4c860fc0b0c64ef3")
SIGNATURE = bytes.fromhex(
    "000000000000000000000000000000000000000000000000000000000000001c"
    "9242685bf161793cc25603c231bc2f568eb630ea16aa137d2664ac8038825608"
    "4f8ae3bd7535248d0bd448298cc2e2071e56992d0774dc340c368ae950852ada"
)
"""EIP-1271's reference vector of ecrecover."""


def _modexp(base: bytes, exponent: bytes, modulus: bytes) -> bytes:
    lengths = b"".join(len(part).to_bytes(32, "big") for part in (base, exponent, modulus))
    return lengths + base + exponent + modulus


def _blake2(rounds: int, last: int = 1) -> bytes:
    return (
        rounds.to_bytes(4, "big") + bytes(range(64)) + b"abc".ljust(128, b"\0") + b"\3".ljust(16, b"\0") + bytes([last])
    )


def _words(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(32, "big") for number in numbers)


BN254_FIELD = 21888242871839275222246405745257275088696311157297823662689037894645226208583
BN254_G2 = (
    11559732032986387107991004021392285783925812861821192530917403151452391805634,
    10857046999023057135944570762232829481370756359578518086990519993285655852781,
    4082367875863433681332203403145435568316851327593401208105741076214120093531,
    8495653923123431417604973247489272438418190587263600148770280649306958101930,
)
"""EIP-197's second generator, as calldata has it."""


@pytest.mark.parametrize(
    ("number", "data"),
    [
        (1, SIGNED_HASH + SIGNATURE),
        (1, SIGNED_HASH + SIGNATURE[:64]),
        (1, SIGNED_HASH + b"\0" * 31 + b"\x1d" + SIGNATURE[32:]),
        (2, b""),
        (2, b"hello"),
        (3, b"hello" * 20),
        (4, bytes(range(100))),
        (5, b""),
        (5, _modexp(b"\x03", b"\xff" * 33, b"\xfe" * 32)),
        (5, _modexp(b"", b"", b"\x05")),
        (5, _modexp(b"", b"\x01", b"\x05")),
        (5, _modexp(b"\x02", b"\x05", b"\x00" * 4)),
        (5, _modexp(b"\x02", b"\x05", b"")),
        (5, _modexp(b"\x02" * 64, b"\x00" * 40, b"\x07" * 64)[:150]),
        (5, b"\xff" * 96),
        (6, _words(1, 2, 1, 2)),
        (6, b""),
        (6, _words(1, 2, 1, 3)),
        (6, _words(BN254_FIELD + 1, 2)),
        (7, _words(1, 2, 2**256 - 1)),
        (7, _words(1, 2)),
        (7, _words(0, 0, 9)),
        (8, b""),
        (8, _words(1, 2, *BN254_G2, 1, BN254_FIELD - 2, *BN254_G2)),
        (8, _words(1, 2, *BN254_G2)),
        (8, _words(1, 2, *BN254_G2)[:-1]),
        (8, _words(1, 2, *BN254_G2[:3], 5)),
        (9, _blake2(12)),
        (9, _blake2(0, 0)),
        (9, _blake2(1, 2)),
        (9, _blake2(12)[:-1]),
    ],
)
def test_precompile(number: int, data: bytes, pair: Pair, scenarios: Address) -> None:
    address = number.to_bytes(20, "big")
    pair.compare(scenarios, calldata("plainCall(address,bytes)", "0x" + address.hex(), data))
    pair.compare(address, data, gas=200_000)


@pytest.mark.parametrize(
    "initcode",
    [
        "",
        "00",
        "60016000f3",  # returns one zero byte
        "60ef60005360016000f3",  # 0xEF is reserved
        "61600160006000f0",  # underflow
        "5f5ffd",
        "fe",
        "616001600081600039f3",  # code larger than EIP-170 allows
        "6000600055600060015560ff60005560006000f3",  # writes, then no code
        "60016000556000600055600160016000600060006000305af15060006000f3",
    ],
)
def test_creation(initcode: str, pair: Pair) -> None:
    pair.compare(None, bytes.fromhex(initcode), value=1)
    pair.compare(None, bytes.fromhex(initcode) + bytes(100) + b"\x01" * 300, gas=80_000)


@pytest.mark.parametrize("kind", [1, 2])
@pytest.mark.parametrize("listed", [0, 1, 3])
def test_access_list(kind: int, listed: int, pair: Pair, scenarios: Address) -> None:
    slots = ["0x" + (_table(1) + extra).to_bytes(32, "big").hex() for extra in range(listed)]
    access_list = [
        {"address": "0x" + scenarios.hex(), "storageKeys": slots},
        {"address": "0x" + HEIR.hex(), "storageKeys": []},
    ]
    fields: dict[str, Any] = {"accessList": access_list[: listed + 1], "type": kind}
    if kind == 1:
        fields["gasPrice"] = 3 * 10**9
    for call in (("set(uint256,uint256)", 1, listed + 30), ("look(address)", "0x" + HEIR.hex())):
        receipt = pair.compare(scenarios, calldata(*call), **fields)
        assert receipt.status == 1


@pytest.mark.parametrize("data", [b"", bytes(100), b"\x01" * 500, b"\0\x01" * 300])
def test_calldata_floor(data: bytes, pair: Pair, scenarios: Address) -> None:
    """EIP-7623, on an account without code, on a contract that fails at once, and on a creation."""
    pair.compare(HEIR, data, value=1)
    pair.compare(scenarios, calldata("invalid()") + data, gas=60_000)
    pair.compare(None, b"\x00" + data)


def test_random_programs(pair: Pair) -> None:
    """Programs drawn from a seed: stack, memory, storage, calls to each other and themselves, creation, logs."""
    others = [bytes([0xD0 + index]) * 20 for index in range(4)]
    for index, address in enumerate(others):
        pair.install(address, _program(b"fixed%d" % index, others), balance=1_000)
    target = b"\xd9" * 20
    num_successes = 0
    for seed in range(60):
        pair.install(target, _program(b"%d" % seed, [*others, target]), balance=500)
        receipt = pair.compare(target, hashlib.sha256(b"%d" % seed).digest(), gas=400_000, value=seed & 1)
        num_successes += receipt.status
        for address in (target, *others):
            pair.compare_account(address, 0, 1, 2, 3)
    assert 10 < num_successes < 60


def _program(seed: bytes, targets: list[bytes]) -> bytes:
    """Put snippets of valid bytecode after one another; most programs run to their end."""
    stream = b"".join(hashlib.sha256(seed + bytes([block])).digest() for block in range(12))
    draws = iter(stream)
    code = b""
    for _ in range(20):
        kind, a, b = next(draws), next(draws), next(draws)
        small, slot = bytes([0x60, a]), bytes([0x60, b & 3])
        address = b"\x73" + targets[a % len(targets)]
        match kind % 22:
            case 0 | 1:
                code += small + slot + b"\x55"  # SSTORE
            case 2:
                code += b"\x5f" + slot + b"\x55"  # SSTORE 0
            case 3:
                code += slot + b"\x54" + small + b"\x01" + slot + b"\x55"  # slot += a
            case 4:
                code += small + slot + b"\x5d" + slot + b"\x5c" + slot + b"\x55"  # TSTORE, TLOAD, SSTORE
            case 5:
                code += small + bytes([0x60, b]) + b"\x52"  # MSTORE
            case 6 | 7 | 8:
                operation = (b"\xf1", b"\xf2")[b & 1]
                code += b"\x60\x20\x60\x40\x60\x20\x5f" + bytes([0x60, b & 1]) + address
                code += b"\x62" + bytes([0, 0x40 + (b & 0x3F), a]) + operation + slot + b"\x55"
            case 9 | 10:
                operation = (b"\xf4", b"\xfa")[b & 1]
                code += b"\x60\x20\x60\x40\x60\x20\x5f" + address + b"\x61\x80" + small[1:] + operation + slot + b"\x55"
            case 11:
                code += small + b"\x5f\x52\x60\x20\x5f" + bytes([0xA0])  # LOG0
            case 12:
                code += small + slot + b"\x60\x20\x5f" + bytes([0xA2])  # LOG2
            case 13:
                code += (
                    address + (b"\x31", b"\x3b", b"\x3f")[b % 3] + slot + b"\x55"
                )  # BALANCE, EXTCODESIZE, EXTCODEHASH
            case 14:
                initcode = (b"\x00", b"\xfe", b"\x60\x01\x60\x02\x55\x60\x01\x5f\xf3", b"\x5f\x5f\xfd")[b & 3]
                word = initcode.ljust(32, b"\0")
                code += b"\x7f" + word + b"\x5f\x52" + bytes([0x60, len(initcode)]) + b"\x5f" + bytes([0x60, a & 1])
                code += b"\xf0" + slot + b"\x55"  # CREATE
            case 15:
                code += b"\x60" + bytes([b & 3]) + b"\x60\x01\x5f\x5f\xf5" + slot + b"\x55"  # CREATE2
            case 16:
                code += b"\x3d" + slot + b"\x55"  # RETURNDATASIZE
            case 17:
                code += b"\x60\x04\x60\x01" + bytes([0x60, b]) + b"\x5e"  # MCOPY
            case 18:
                operation = bytes([0x01 + b % 11])
                code += small + bytes([0x61, a, b]) + bytes([0x60, b | 1]) + operation
                code += (b"\x50" if operation in (b"\x08", b"\x09") else b"") + slot + b"\x55"
                code += b"" if operation in (b"\x08", b"\x09") else b"\x50"
            case 19:
                code += b"\x5f\x35" + small + b"\x16" + slot + b"\x55"  # CALLDATALOAD AND a
            case 20:
                code += (b"\x5f\x5f\xfd", b"\xfe", b"\x60\x20\x5f\xf3", address + b"\xff")[b & 3] if a < 60 else b"\x5b"
            case 21:
                code += b"\x5a\x15" + slot + b"\x55"  # is there no gas left?
    return code + b"\x60\x40\x5f\xf3"
