"""Blocks: what a transaction does, refused or failed, and where the money goes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chain.core import accounts, errors
from chain.core.block_hashes import process_block_hashes
from chain.core.environment import know_no_block
from chain.core.executor import (
    BlockEnvironment,
    Contracts,
    compute_intrinsic_gas,
    process_block,
    process_transaction,
    simulate_call,
)
from chain.core.genesis import Genesis, get_supply, process_genesis
from chain.core.records import Receipt, Transaction
from chain.core.state import Overlay
from chain.core.types import Address, Amount

MakeEnvironment = Callable[[int], BlockEnvironment]
BOB = b"\xb0" * 20
COUNTER = Address(b"\x77" * 20)
PROPOSER = Address(b"\x99" * 20)
GWEI = 10**9


def _sum_balances(state: Overlay) -> int:
    return sum(int.from_bytes(value[8:40], "big") for _, value in state.iterate(b"a/", b"a0"))


def test_transfer_pays_burns_and_tips(
    alice: Any, state: Overlay, make_environment: MakeEnvironment, contracts: Contracts
) -> None:
    before = accounts.get_balance(state, alice.address)
    supply = get_supply(state)
    receipt = process_transaction(state, make_environment(1), alice.transaction(0, value=5), contracts)
    price = GWEI + GWEI // 10
    assert (receipt.status, receipt.gas_used, receipt.effective_gas_price) == (1, 21_000, price)
    assert accounts.get_balance(state, Address(BOB)) == 5
    assert accounts.get_balance(state, alice.address) == before - 5 - 21_000 * price
    assert accounts.get_balance(state, PROPOSER) == 21_000 * (GWEI // 10)
    assert get_supply(state) == supply - 21_000 * GWEI == _sum_balances(state)
    assert accounts.get_nonce(state, alice.address) == 1


def test_call_returns_logs_and_refunds(
    alice: Any, state: Overlay, make_environment: MakeEnvironment, contracts: Contracts
) -> None:
    transaction = alice.transaction(0, to=COUNTER, data=b"\x09", gas=100_000, value=3)
    receipt = process_transaction(state, make_environment(1), transaction, contracts, gas_used_before=7, log_index=4)
    assert receipt.status == 1
    assert receipt.output == (1).to_bytes(32, "big")
    assert receipt.gas_used == 21_016 + 5_000
    assert receipt.cumulative_gas_used == receipt.gas_used + 7
    assert [entry.data for entry in receipt.logs] == [b"\x09"]
    assert receipt.log_index == 4
    assert accounts.get_balance(state, COUNTER) == 3


@pytest.mark.parametrize(("data", "gas_used"), [(b"\x00", 26_004), (b"\x01", 100_000)])
def test_failed_call_keeps_nonce_and_fee_and_undoes_the_rest(
    data: bytes, gas_used: int, alice: Any, state: Overlay, make_environment: MakeEnvironment, contracts: Contracts
) -> None:
    before = accounts.get_balance(state, alice.address)
    transaction = alice.transaction(0, to=COUNTER, data=data, gas=100_000, value=3)
    receipt = process_transaction(state, make_environment(1), transaction, contracts)
    assert (receipt.status, receipt.gas_used, receipt.logs) == (0, gas_used, ())
    assert state.get(b"x/count") is None
    assert accounts.get_balance(state, COUNTER) == 0
    assert accounts.get_nonce(state, alice.address) == 1
    assert accounts.get_balance(state, alice.address) == before - gas_used * receipt.effective_gas_price
    assert get_supply(state) == _sum_balances(state)
    assert receipt.output == (b"\xde\xad" if data == b"\x00" else b"")
    assert receipt.error.startswith("execution reverted: Unwanted(1, 2)" if data == b"\x00" else "out of gas")


def test_broken_invariant_is_not_caught(
    alice: Any, state: Overlay, make_environment: MakeEnvironment, contracts: Contracts
) -> None:
    with pytest.raises(RuntimeError, match="broken invariant"):
        process_block(
            state, make_environment(1), [alice.transaction(0, to=COUNTER, data=b"\x02", gas=90_000)], contracts
        )


@pytest.mark.parametrize(
    ("nonce", "fields", "error"),
    [
        (1, {}, errors.NonceTooHigh),
        (0, {"gas": 20_999}, errors.IntrinsicGasTooLow),
        (0, {"gas": 60_000_001}, errors.GasLimitTooHigh),
        (0, {"maxFeePerGas": GWEI - 1, "maxPriorityFeePerGas": 0}, errors.FeeCapTooLow),
        (0, {"gasPrice": GWEI - 1}, errors.FeeCapTooLow),
        (0, {"value": 10**24}, errors.InsufficientFunds),
        (0, {"to": None, "data": b"\x60", "gas": 53_017}, errors.IntrinsicGasTooLow),
        (0, {"data": b"\x01", "gas": 21_039}, errors.IntrinsicGasTooLow),
        (0, {"to": None, "data": bytes(49_153), "gas": 10**6}, errors.InitcodeTooLarge),
        (0, {"to": None, "gas": 6_053_001}, errors.EvmGasLimitTooHigh),
    ],
)
def test_invalid_transaction_changes_nothing(
    nonce: int,
    fields: dict[str, Any],
    error: type[Exception],
    alice: Any,
    state: Overlay,
    make_environment: MakeEnvironment,
    contracts: Contracts,
) -> None:
    process_block_hashes(state, make_environment(1).height, know_no_block)  # a block with transactions writes them
    before = state.changes()
    execution = process_block(state, make_environment(1), [alice.transaction(nonce, **fields)], contracts)
    assert isinstance(execution.results[0], error)
    assert execution.receipts == ()
    assert state.changes() == before


def test_replay_is_refused_and_leaves_the_first_receipt(
    alice: Any, state: Overlay, make_environment: MakeEnvironment, contracts: Contracts
) -> None:
    transaction = alice.transaction(0)
    execution = process_block(state, make_environment(1), [transaction, transaction], contracts)
    assert [type(result) for result in execution.results] == [Receipt, errors.NonceTooLow]
    assert len(execution.receipts) == 1


def test_block_gas_limit_is_kept(
    alice: Any, state: Overlay, make_environment: MakeEnvironment, contracts: Contracts
) -> None:
    first = alice.transaction(0, gas=59_990_000, to=COUNTER, data=b"\x01")
    execution = process_block(state, make_environment(1), [first, alice.transaction(1)], contracts)
    assert execution.receipts[0].gas_used == 59_990_000
    assert isinstance(execution.results[1], errors.BlockGasExhausted)
    assert "10000 gas left" in str(execution.results[1])


def test_timer_logs_follow(alice: Any, state: Overlay, make_environment: MakeEnvironment, contracts: Contracts) -> None:
    call = alice.transaction(0, to=COUNTER, data=b"\x09", gas=100_000)
    execution = process_block(state, make_environment(7), [call], contracts)
    assert [entry.data for entry in execution.timer_logs] == [b"tick"]
    assert process_block(state, make_environment(8), [], contracts).timer_logs == ()


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    moves=st.lists(
        st.tuples(
            st.booleans(), st.sampled_from([BOB, COUNTER, PROPOSER, "alice", "carol"]), st.integers(0, 3), st.booleans()
        ),
        max_size=12,
    ),
    proposer=st.sampled_from([PROPOSER, "alice"]),
)
def test_block_is_its_transactions_one_by_one(
    moves: list[tuple[bool, Any, int, bool]],
    proposer: Any,
    alice: Any,
    carol: Any,
    genesis: Genesis,
    make_environment: MakeEnvironment,
    contracts: Contracts,
) -> None:
    """Fees that wait for their end change nothing, whoever proposes, pays, gets or fails."""
    named = {"alice": alice.address, "carol": carol.address}
    environment = replace(make_environment(1), proposer=named.get(proposer, proposer))
    nonces = {alice: 0, carol: 0}
    transactions: list[Transaction] = []
    for is_alice, to, value, is_refused in moves:
        signer = alice if is_alice else carol
        nonce = 99 if is_refused else nonces[signer]
        data = b"\x05" if to == COUNTER else b""
        transactions.append(
            signer.transaction(nonce, to=named.get(to, to), value=value, data=data, gas=90_000 if data else 21_000)
        )
        nonces[signer] += not is_refused
    states = [Overlay(), Overlay()]
    for each in states:
        process_genesis(each, genesis)
    together = process_block(states[0], environment, transactions, contracts)
    gas_used = log_index = 0
    for transaction, expected in zip(transactions, together.results, strict=True):
        try:
            receipt = process_transaction(
                states[1], environment, transaction, contracts, gas_used_before=gas_used, log_index=log_index
            )
        except errors.InvalidTransaction as error:
            refused = error
            assert (type(refused), str(refused)) == (type(expected), str(expected))
            continue
        assert receipt == expected
        gas_used, log_index = receipt.cumulative_gas_used, log_index + len(receipt.logs)
    assert states[0].get(b"a/" + PROPOSER) == states[1].get(b"a/" + PROPOSER)
    ours = dict(states[0].changes())
    for key, value in states[1].changes():
        assert ours.pop(key) == value
    assert all(key.startswith(b"h/") for key in ours), "the block's own records"
    assert get_supply(states[0]) == _sum_balances(states[0])


def test_fees_that_wait_are_there_for_whoever_looks(
    alice: Any, carol: Any, state: Overlay, make_environment: MakeEnvironment, contracts: Contracts
) -> None:
    """The proposer spends what the block has just brought, and code sees its balance."""
    tip, most = 21_000 * GWEI // 10, 21_000 * 2 * GWEI
    spent = 10**24 + tip - most  # all that it has with the first transfer's tip, and not a wei less
    look = bytes.fromhex("41315f5500")  # COINBASE BALANCE PUSH0 SSTORE
    transactions = [
        alice.transaction(0),
        carol.transaction(0, value=spent),
        alice.transaction(1, to=None, data=look, gas=100_000, value=0),
        alice.transaction(2),
        alice.transaction(3, to=None, data=look, gas=100_000, value=0),
    ]
    environment = replace(make_environment(1), proposer=carol.address)
    execution = process_block(state, environment, transactions, contracts)
    assert [receipt.status for receipt in execution.receipts] == [1] * 5
    seen = [int.from_bytes(value, "big") for _, value in state.iterate(b"e/", b"e0")]
    left = 10**24 + tip - spent - 21_000 * GWEI  # its own tip comes back
    between = (execution.receipts[2].gas_used + 21_000) * GWEI // 10
    assert sorted(seen) == [left, left + between]
    last = execution.receipts[4].gas_used * GWEI // 10
    assert accounts.get_balance(state, carol.address) == left + between + last
    assert get_supply(state) == _sum_balances(state)


def test_simulation_agrees_with_execution_and_changes_nothing(
    alice: Any, state: Overlay, make_environment: MakeEnvironment, contracts: Contracts
) -> None:
    before = state.changes()
    environment = make_environment(1)
    for data in (b"\x09", b"\x00"):
        call = simulate_call(
            state, environment, sender=alice.address, to=COUNTER, data=data, gas_limit=100_000, contracts=contracts
        )
        assert state.changes() == before
        mark = state.begin()
        receipt = process_transaction(
            state, environment, alice.transaction(0, to=COUNTER, data=data, gas=call.gas_used), contracts
        )
        state.rollback(mark)
        assert (call.status, call.output, call.gas_used) == (receipt.status, receipt.output, receipt.gas_used)
        assert call.is_revert == (data == b"\x00")
    with pytest.raises(errors.InsufficientFunds):
        simulate_call(
            state,
            environment,
            sender=Address(BOB),
            to=COUNTER,
            value=Amount(1),
            gas_limit=10**6,
            contracts=contracts,
        )


def test_intrinsic_gas() -> None:
    assert compute_intrinsic_gas(b"") == 21_000
    assert compute_intrinsic_gas(b"\x00\x01\x00") == 21_000 + 4 + 16 + 4


CALLS = st.tuples(
    st.integers(0, 4),
    st.sampled_from([BOB, bytes(COUNTER), bytes(PROPOSER)]),
    st.sampled_from([b"", b"\x00", b"\x01", b"\x05"]),
    st.sampled_from([0, 1, 10**18, 10**24]),
    st.sampled_from([21_000, 30_000, 29_000_000]),
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(calls=st.lists(CALLS, max_size=6))
def test_money_is_conserved(
    calls: list[tuple[int, bytes, bytes, int, int]],
    alice: Any,
    genesis: Genesis,
    make_environment: MakeEnvironment,
    contracts: Contracts,
) -> None:
    state = Overlay()
    process_genesis(state, genesis)
    decoded: list[Transaction | errors.InvalidTransaction] = [
        alice.transaction(nonce, to=to, data=data, value=value, gas=gas) for nonce, to, data, value, gas in calls
    ]
    execution = process_block(state, make_environment(1), decoded, contracts)
    assert len(execution.results) == len(decoded)
    assert get_supply(state) == _sum_balances(state)
    assert accounts.get_nonce(state, alice.address) == len(execution.receipts)
    used = [receipt.gas_used for receipt in execution.receipts]
    assert [receipt.cumulative_gas_used for receipt in execution.receipts] == [
        sum(used[: index + 1]) for index in range(len(used))
    ]
