"""The rules around the EVM: who pays, what is refused, what a block holds, how much gas to send."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from eth.vm.code_stream import CodeStream
from evm_pair import CHAIN_ID, GWEI, Chain, bytecode, calldata
from hypothesis import given, settings
from hypothesis import strategies as st

from chain.core import accounts, errors
from chain.core.estimate import estimate_gas
from chain.core.evm.addresses import compute_create_address
from chain.core.evm.code import find_jump_targets
from chain.core.evm.gas import EVM_BLOCK_GAS, SSTORE_WORK_GAS, compute_intrinsic_gas
from chain.core.evm.layout import SYSTEM_CODE, get_code, get_slot, set_code
from chain.core.executor import process_block, simulate_call
from chain.core.genesis import get_supply
from chain.core.queue import TransactionQueue
from chain.core.records import Receipt
from chain.core.transactions import decode_transaction
from chain.core.types import Address, Amount, Height
from chain.system import CONTRACTS

ADDER = bytes.fromhex("600a600c600039600a6000f3" + "60003560010160005500")
"""Initcode of a contract that puts its first argument plus one into slot 0."""
STORE = bytes.fromhex("5f356020355500")
"""Puts calldata's first word into the slot that its second word names."""
STORE_ADDRESS = Address(b"\x72" * 20)
BURN = bytes.fromhex("fe")
"""Takes all gas at once."""
SELF_CALL = bytes.fromhex("5f5f5f5f5f305af100")
"""Calls itself with all gas, as deep as it gets."""


def test_a_contract_is_made_and_called(chain: Chain) -> None:
    address = chain.deploy(ADDER)
    assert get_code(chain.state, address) == ADDER[12:]
    receipt = chain.send(address, (41).to_bytes(32, "big"))
    assert receipt.status == 1
    assert get_slot(chain.state, address, 0) == 42
    assert accounts.get_nonce(chain.state, address) == 1
    chain.send(address, b"\xff" * 32)
    assert list(chain.state.iterate(b"e/", b"e0")) == []  # a zero slot is no key


def test_money_goes_where_the_receipt_says(chain: Chain) -> None:
    before = accounts.get_balance(chain.state, chain.sender)
    supply = get_supply(chain.state)
    receipt = chain.send(None, ADDER, value=5)
    price = GWEI + GWEI // 10
    assert accounts.get_balance(chain.state, chain.sender) == before - 5 - receipt.gas_used * price
    assert accounts.get_balance(chain.state, Address(b"\x99" * 20)) == receipt.gas_used * (GWEI // 10)
    assert get_supply(chain.state) == supply - receipt.gas_used * GWEI


def test_a_call_without_gas_to_run_fails_and_moves_nothing(chain: Chain) -> None:
    """It is no transfer: the code is reached and has nothing to run on."""
    address = chain.deploy(ADDER)
    receipt = chain.send(address, value=7, gas=21_000)
    assert (receipt.status, receipt.gas_used) == (0, 21_000)
    assert accounts.get_balance(chain.state, address) == 0


def test_self_destruction_burns_what_it_keeps(chain: Chain, solidity: dict[str, Any]) -> None:
    scenarios = chain.deploy(bytecode(solidity["Scenarios"]), value=1_000)
    supply = get_supply(chain.state)
    receipt = chain.send(scenarios, calldata("destroyIntoItself(uint256)", 78))
    assert receipt.status == 1
    assert supply - get_supply(chain.state) - receipt.gas_used * GWEI == 79
    fresh = compute_create_address(scenarios, 1)
    assert chain.state.get(b"a/" + fresh) is None
    assert chain.state.get(b"c/" + fresh) is None
    assert list(chain.state.iterate(b"e/" + fresh, b"e/" + fresh + b"\xff" * 33)) == []


def test_system_contracts_show_code(chain: Chain) -> None:
    assert {get_code(chain.state, address) for address in CONTRACTS} == {SYSTEM_CODE}


def test_invalid_sender_with_code(chain: Chain) -> None:
    set_code(chain.state, chain.sender, b"\x00")
    transaction = decode_transaction(chain.sign(b"\x11" * 20, gas=21_000), CHAIN_ID)
    (result,) = process_block(chain.state, chain.environment(), [transaction], CONTRACTS).results
    assert isinstance(result, errors.SenderIsContract)


def test_creation_on_a_taken_address_fails_and_pays(chain: Chain) -> None:
    address = compute_create_address(chain.sender, chain.nonce)
    set_code(chain.state, address, b"\x00")
    receipt = chain.send(None, ADDER, gas=100_000, value=1)
    assert (receipt.status, receipt.gas_used, receipt.error) == (0, 100_000, "contract address collision")
    assert accounts.get_balance(chain.state, address) == 0


def test_the_evm_has_its_own_meter_of_a_block(chain: Chain) -> None:
    """Two halves fill it; transfers go on, and what would not fit is refused by name and leaves its nonce free."""
    burner = Address(b"\x70" * 20)
    set_code(chain.state, burner, BURN)
    half = EVM_BLOCK_GAS // 2 + 21_000
    raws = [chain.sign(burner, gas=half, nonce=0), chain.sign(burner, gas=half, nonce=1)]
    raws += [chain.sign(burner, gas=21_001, nonce=2), chain.sign(b"\x11" * 20, gas=21_000, nonce=2)]
    transactions = [decode_transaction(raw, CHAIN_ID) for raw in raws]
    results = process_block(chain.state, chain.environment(), transactions, CONTRACTS).results
    assert [type(result) for result in results] == [Receipt, Receipt, errors.BlockGasExhausted, Receipt]


def test_unused_gas_goes_back_to_the_meter(chain: Chain) -> None:
    address = chain.deploy(ADDER)
    raws = [chain.sign(address, gas=EVM_BLOCK_GAS + 21_000, nonce=1 + index) for index in range(2)]
    transactions = [decode_transaction(raw, CHAIN_ID) for raw in [*raws, chain.sign(address, gas=900_000, nonce=2)]]
    results = process_block(chain.state, chain.environment(), transactions, CONTRACTS).results
    assert [type(result) for result in results] == [Receipt, errors.BlockGasExhausted, Receipt]
    error = results[1]
    assert isinstance(error, errors.BlockGasExhausted)
    first = results[0]
    assert isinstance(first, Receipt)
    state_gas = 22_100 - SSTORE_WORK_GAS
    assert error.left == EVM_BLOCK_GAS - (first.gas_used - 21_000 - state_gas)


@pytest.mark.parametrize(("rules", "num_executed"), [(2, 4), (3, 100)])
def test_the_meter_counts_work_and_a_write_is_little_of_it(chain: Chain, rules: int, num_executed: int) -> None:
    """Each of a hundred writes reserves 22,500 gas of 100,000; before rules 3 each also took it."""
    set_code(chain.state, STORE_ADDRESS, STORE)
    environment = replace(chain.environment(), parameters=replace(chain.parameters, evm_gas_limit=100_000), rules=rules)
    words = [index.to_bytes(32, "big") for index in range(1, 101)]
    raws = [chain.sign(STORE_ADDRESS, word * 2, gas=45_000, nonce=index) for index, word in enumerate(words)]
    transactions = [decode_transaction(raw, CHAIN_ID) for raw in raws]
    execution = process_block(chain.state, environment, transactions, CONTRACTS)
    assert [receipt.status for receipt in execution.receipts] == [1] * num_executed
    execution_gas = execution.receipts[0].gas_used - compute_intrinsic_gas(transactions[0].data)
    taken = execution_gas - (22_100 - SSTORE_WORK_GAS if rules == 3 else 0)
    assert execution.evm_work == {STORE_ADDRESS: taken}


def test_a_proposal_keeps_to_the_meter(chain: Chain) -> None:
    queue = TransactionQueue()
    transactions = [decode_transaction(chain.sign(b"\x70" * 20, gas=40_000, nonce=n), CHAIN_ID) for n in range(12)]
    for transaction in transactions:
        queue.admit(transaction, chain.nonce, Amount(10**24), Height(1))  # type: ignore[arg-type]
    chosen = queue.plan_proposal(
        transactions,
        lambda _: accounts.get_account(chain.state, chain.sender),
        max_bytes=10**6,
        gas_limit=30_000_000,
        height=Height(1),
        evm_gas_limit=200_000,
        read_evm_gas=lambda transaction: (transaction.gas_limit - 21_000,) * 2,
    )
    assert chosen == [transaction.raw for transaction in transactions[:10]]


@pytest.mark.parametrize("gas", [EVM_BLOCK_GAS, 10**12])
def test_the_deepest_calls_end_like_any_others(gas: int, chain: Chain) -> None:
    """With the gas of a block, and with enough for all 1,024 frames."""
    address = Address(b"\x71" * 20)
    set_code(chain.state, address, SELF_CALL)
    result = chain.call(address, gas=gas)
    assert result.status == 1


def test_a_wide_memory_runs_out_of_gas_before_it_is_taken(chain: Chain) -> None:
    for program in ("5f63ffffffff52", "7f" + "ff" * 32 + "5ff3", "7f" + "ff" * 32 + "5f60015e"):
        assert chain.call(None, bytes.fromhex(program)).status == 0


def test_estimate_is_enough_and_near(chain: Chain, solidity: dict[str, Any]) -> None:
    scenarios = chain.deploy(bytecode(solidity["Scenarios"]), value=1_000)
    chain.send(scenarios, calldata("make(uint256,uint256)", 5, 0))
    chain.send(scenarios, calldata("fill(uint256,uint256)", 50, 5))
    for data in (
        calldata("set(uint256,uint256)", 1, 5),
        calldata("clear(uint256,uint256)", 50, 5),
        calldata("nested(uint256)", 12),
        calldata("deep(uint256)", 40),
        calldata("pass(uint256,uint256,uint256)", 9, 1, 200_000),
        calldata("catchRefusal(uint256)", 4),
        calldata("tryMake(uint256)", 14),
    ):
        estimate = _estimate(chain, scenarios, data)
        assert chain.call(scenarios, data, gas=estimate).status == 1
        result = chain.call(scenarios, data)
        assert estimate <= max(result.gas_peak, result.gas_used) * 1.6
        mark = chain.state.begin()
        assert chain.send(scenarios, data, gas=estimate).status == 1
        chain.state.rollback(mark)
        chain.nonce -= 1
    assert _estimate(chain, None, ADDER) == chain.call(None, ADDER).gas_used
    assert _estimate(chain, Address(b"\x11" * 20), b"") == 21_000
    assert _estimate(chain, scenarios, calldata("failWithCustom()")) == 0


def _estimate(chain: Chain, to: Address | None, data: bytes) -> int:
    estimate, _ = estimate_gas(
        chain.state,
        chain.environment(),
        sender=chain.sender,
        to=to,
        value=Amount(0),
        data=data,
        gas_limit=5_000_000,
        contracts=CONTRACTS,
    )
    return estimate


def test_intrinsic_gas_of_creations_and_lists() -> None:
    """The worked example of the module, and one address with two slots."""
    assert compute_intrinsic_gas(b"\x00\x01", is_creation=True) == 53_020
    listed = ((Address(b"\x11" * 20), (bytes(32), b"\x01" * 32)),)
    assert compute_intrinsic_gas(b"", access_list=listed) == 21_000 + 2_400 + 2 * 1_900


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.sampled_from([b"\x5b", b"\x60", b"\x61", b"\x6f", b"\x7f", b"\x00", b"\x56", b"\x5b\x5b"]), max_size=90)
)
def test_jump_targets_are_those_of_py_evm(parts: list[bytes]) -> None:
    code = b"".join(parts)
    oracle = CodeStream(code)
    expected = [code[position] == 0x5B and oracle.is_valid_opcode(position) for position in range(len(code))]
    assert [bool(mark) for mark in find_jump_targets(code)] == expected


@pytest.mark.parametrize("fill", [b"\x60", b"\x7f", b"\x5b", bytes(range(0x60, 0x80))])
def test_hostile_code_is_looked_through_once(fill: bytes, chain: Chain) -> None:
    """A loop of calls into the largest code, which jumps to its end: py-evm alone takes hours and recurses."""
    target, caller = Address(b"\x72" * 20), Address(b"\x73" * 20)
    code = bytes.fromhex("615ffe56") + (fill * 24_576)[: 24_576 - 6] + b"\x5b\x00"
    set_code(chain.state, target, code)
    set_code(chain.state, caller, bytes.fromhex("5b5f5f5f5f5f73" + target.hex() + "61ffff" + "f1505f56"))
    assert chain.call(caller, gas=200_000).error == "out of gas"


EDGES = [0, 1, 2, 31, 32, 33, 255, 256, 2**16, 2**32, 2**63, 2**64, 2**128, 2**255, 2**256 - 1]


@settings(max_examples=300, deadline=None)
@given(
    opcode=st.integers(0, 255),
    arguments=st.lists(st.sampled_from([*EDGES, *range(3, 18), 0x1000, 0x1001, 0x1002]), min_size=8, max_size=8),
    data=st.binary(max_size=300),
)
def test_no_opcode_and_no_precompile_raises(opcode: int, arguments: list[int], data: bytes) -> None:
    """Every opcode on edge values, twice, then a call of some precompile with some data: always a result."""
    chain = Chain()
    pushes = b"".join(b"\x7f" + argument.to_bytes(32, "big") for argument in arguments)
    code = (
        (pushes + bytes([opcode])) * 2
        + b"\x5b\x5f\x5f\x60\xff\x5f\x5f\x60"
        + bytes([arguments[0] & 15])
        + b"\x61\xff\xff\xf1"
    )
    address = Address(b"\x74" * 20)
    set_code(chain.state, address, code)
    before = chain.state.changes()
    result = chain.call(address, data, gas=300_000)
    assert result.gas_used <= 300_000
    for number in range(1, 18):
        assert chain.call(number.to_bytes(20, "big"), data, gas=100_000).gas_used <= 100_000
    assert chain.state.changes() == before


def test_a_call_outside_any_block_can_be_given_up(chain: Chain) -> None:
    class GivenUpError(Exception):
        pass

    looks = 0

    def watch() -> None:
        nonlocal looks
        looks += 1
        if looks == 100:
            raise GivenUpError

    before = list(chain.state.iterate(b"", b"\xff"))
    endless = bytes.fromhex("5b5f56")  # JUMPDEST PUSH0 JUMP
    with pytest.raises(GivenUpError):
        simulate_call(
            chain.state,
            chain.environment(),
            sender=chain.sender,
            to=None,
            data=endless,
            gas_limit=3_000_000,
            contracts=CONTRACTS,
            watch=watch,
        )
    assert looks == 100
    assert list(chain.state.iterate(b"", b"\xff")) == before
