"""Users' contracts and the system contracts: what they may do, and what a revert anywhere undoes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from eth_abi import decode, encode
from evm_pair import Chain, bytecode, calldata

from chain.core.contracts.registry import CODECS
from chain.core.executor import simulate_call
from chain.core.genesis import get_supply
from chain.core.types import Address
from chain.system import CONTRACTS

STAKING = Address(bytes(18) + b"\x10\x02")
BN254_ADD = bytes(19) + b"\x06"


@pytest.fixture
def user(chain: Chain, solidity: dict[str, Any]) -> Address:
    """SystemUser.sol with some money."""
    return chain.deploy(bytecode(solidity["SystemUser"]), value=1_000)


def _native_state(chain: Chain) -> list[tuple[bytes, bytes]]:
    return list(chain.state.iterate(b"k/", b"k0"))


def _bond_of(chain: Chain, owner: bytes) -> int:
    codec = CODECS[STAKING].by_name["bondOf"]
    return int(codec.decode_outputs(chain.call(STAKING, codec.encode_inputs([owner])).output)[0])


def _output(chain: Chain, user: Address, kinds: list[str], signature: str, *values: object) -> tuple[Any, ...]:
    result = chain.call(user, calldata(signature, *values))
    assert result.status == 1, result.error
    return tuple(decode(kinds, result.output))


def test_a_contract_bonds_as_itself(chain: Chain, user: Address) -> None:
    receipt = chain.send(user, calldata("bond(uint256)", 70))
    assert receipt.status == 1
    assert (_bond_of(chain, user), _bond_of(chain, chain.sender)) == (70, 0)
    (log,) = receipt.logs
    decoded = CODECS[STAKING].decode_log(log)
    assert decoded is not None
    assert (log.address, decoded[0], decoded[1]["amount"]) == (STAKING, "Bonded", 70)
    assert log.topics[1][12:] == user
    assert _output(chain, user, ["uint256"], "note()") == (70,)


def test_a_revert_undoes_native_state_logs_and_money(chain: Chain, user: Address) -> None:
    chain.send(user, calldata("bond(uint256)", 5))
    before = _native_state(chain), chain.call(user, calldata("note()")).output
    receipt = chain.send(user, calldata("bondAndRevert(uint256)", 50), value=3)
    assert (receipt.status, receipt.logs) == (0, ())
    assert (_native_state(chain), chain.call(user, calldata("note()")).output) == before


def test_a_revert_inside_try_undoes_only_what_was_inside(chain: Chain, user: Address) -> None:
    receipt = chain.send(user, calldata("bondInTry(uint256,uint256)", 400, 30))
    assert receipt.status == 1
    assert [log.address for log in receipt.logs] == [STAKING]
    assert _bond_of(chain, user) == 30
    (why,) = decode(["bytes"], receipt.output)
    assert why == calldata("Undone()")


def test_custom_errors_of_system_contracts_reach_solidity(chain: Chain, user: Address) -> None:
    receipt = chain.send(user, calldata("catchNative(uint256)", 9))
    assert receipt.status == 1
    (why,) = decode(["bytes"], receipt.output)
    assert CODECS[STAKING].decode_error(why) == ("InsufficientBond", (9, 0))
    bubbled = chain.call(user, calldata("bubble(uint64)", 99))
    assert (bubbled.status, bubbled.is_revert) == (0, True)
    assert bubbled.output == calldata("UnknownRun(uint64)", 99)


def test_a_contract_reads_the_system_contracts(chain: Chain, user: Address) -> None:
    runs, tiers, nodes, code_size = _output(chain, user, ["uint64", "uint256", "uint256", "uint256"], "read()")
    assert (runs, nodes, code_size) == (0, 0, 1)
    assert tiers >= 3


def test_a_static_call_writes_nothing(chain: Chain, user: Address) -> None:
    chain.send(user, calldata("bond(uint256)", 5))
    before = _native_state(chain)
    is_done, output = _output(chain, user, ["bool", "bytes"], "writeStatically()")
    assert (is_done, output) == (False, calldata("WriteInStaticCall()"))
    assert chain.send(user, calldata("writeStatically()")).status == 1
    assert _native_state(chain) == before


def test_invalid_delegated_call_into_a_system_contract(chain: Chain, user: Address) -> None:
    before = _native_state(chain)
    is_done, output = _output(chain, user, ["bool", "bytes"], "delegate()")
    assert not is_done
    assert b"use CALL" in output
    assert _output(chain, user, ["uint256"], "callcode()") == (0,)
    receipt = chain.send(user, calldata("callcode()"), value=5)
    assert receipt.status == 1
    assert _native_state(chain) == before


def test_money_sent_without_a_function_comes_back(chain: Chain, user: Address) -> None:
    before = chain.count_money()
    assert _output(chain, user, ["bool"], "sendTo(address,uint256)", "0x" + STAKING.hex(), 5) == (False,)
    chain.send(user, calldata("sendTo(address,uint256)", "0x" + STAKING.hex(), 5))
    assert before - chain.count_money() > 0
    assert chain.count_money() == get_supply(chain.state)


def test_a_native_call_without_enough_gas_fails_alone(chain: Chain, user: Address) -> None:
    before = _native_state(chain)
    receipt = chain.send(user, calldata("starve(uint256)", 20_000))
    assert receipt.status == 1
    assert decode(["bool", "bytes"], receipt.output) == (False, b"")
    assert _native_state(chain) == before
    assert chain.send(user, calldata("starve(uint256)", 90_000)).status == 1
    assert _native_state(chain) != before


def test_a_native_call_costs_in_the_evm_what_its_table_says(chain: Chain, user: Address) -> None:
    alone = chain.call(STAKING, calldata("bond()"), value=1).gas_used - 21_000 - 4 * 16
    with_bond = chain.send(user, calldata("starve(uint256)", 10**6)).gas_used
    without = chain.send(user, calldata("starve(uint256)", 0)).gas_used
    assert abs(with_bond - without - alone) < 5_000


def test_precompiles_of_curves_say_under_older_rules_that_they_are_not_there(chain: Chain) -> None:
    for rules, is_there in ((2, False), (3, True)):
        result = simulate_call(
            chain.state,
            replace(chain.environment(), rules=rules),
            sender=chain.sender,
            to=Address(BN254_ADD),
            data=bytes(128),
            gas_limit=500_000,
            contracts=CONTRACTS,
        )
        assert (result.status, result.is_revert) == (int(is_there), not is_there)
        assert is_there or "from rules 3 on" in result.error
        assert result.gas_used < 30_000


def test_revert_reasons_are_readable(chain: Chain, solidity: dict[str, Any]) -> None:
    scenarios = chain.deploy(bytecode(solidity["Scenarios"]))
    for data, words in (
        (calldata("failWithReason(string)", "not today"), "execution reverted: not today"),
        (calldata("failWithPanic(uint256,uint256,uint256)", 1, 2, 0), "panic 0x11 (arithmetic overflow or underflow)"),
        (calldata("failWithCustom()"), "execution reverted: custom error 0x"),
        (calldata("invalid()"), "invalid opcode"),
        (calldata("unknown()"), "execution reverted"),
    ):
        assert words in chain.call(scenarios, data).error
    assert chain.call(scenarios, calldata("spin()"), gas=100_000).error == "out of gas"
    # hostile revert data is no way to make this raise
    for tail in (b"", b"\xff" * 32, encode(["uint256"], [2**255])):
        code = b"\x08\xc3\x79\xa0" + tail
        program = (
            b"\x60" + bytes([len(code)]) + b"\x60\x0c\x60\x00\x39\x60" + bytes([len(code)]) + b"\x60\x00\xfd" + code
        )
        assert chain.call(None, program).error == "execution reverted"
