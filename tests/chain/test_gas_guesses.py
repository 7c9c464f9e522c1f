"""A gas limit that is named and not used keeps nobody out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from abci_driver import Driver
from signers import BOB, COUNTER, Signer

from chain.abci.application import ChainApplication
from chain.abci.gas_guesses import MAX_KEYS, GasGuesses
from chain.core.evm.gas import EVM_BLOCK_GAS
from chain.core.evm.layout import set_code
from chain.core.genesis import Genesis, process_genesis
from chain.core.state import Overlay
from chain.core.types import Address
from chain.store import Store
from chain.system import CONTRACTS, process_system_genesis

BLOCK_GAS = 60_000_000
LOOPS_WHEN_TOLD = bytes.fromhex("3660055700" + "5b600556")
"""CALLDATASIZE PUSH1 5 JUMPI STOP; JUMPDEST PUSH1 5 JUMP."""


@pytest.fixture
def driver(tmp_path: Path, contracts: Any, app_state: dict[str, Any]) -> Iterator[Driver]:
    store = Store(tmp_path)
    started = Driver(ChainApplication(store, contracts, process_genesis), app_state)
    started.init_chain()
    yield started
    store.close()


def test_a_transfer_with_the_gas_of_a_block_leaves_the_block_to_others(driver: Driver, alice: Any, carol: Any) -> None:
    greedy = [alice.raw(nonce, gas=BLOCK_GAS) for nonce in range(3)]
    modest = [carol.raw(nonce) for nonce in range(5)]
    for raw in greedy + modest:
        assert driver.check(raw).code == 0
    assert driver.prepare([]) == [greedy[0], *modest]
    assert {result.code for result in driver.block([greedy[0], *modest]).tx_results} == {0}
    assert driver.prepare([]) == greedy[1:2]


def test_calls_and_creations_are_expected_to_use_what_they_used(driver: Driver, alice: Any, carol: Any) -> None:
    for start, greedy in (
        (0, [alice.raw(nonce, gas=BLOCK_GAS, to=COUNTER) for nonce in range(3)]),
        (3, [alice.raw(nonce, gas=6_000_000, to=None, data=b"\x5f", value=0) for nonce in range(3, 6)]),
    ):
        creation = carol.raw(start, gas=5_900_000, to=None, data=b"\x5f", value=0)
        modest = [creation, carol.raw(start + 1), carol.raw(start + 2)]
        for raw in greedy + modest:
            assert driver.check(raw).code == 0
        driver.block(greedy[:1])
        assert set(modest) <= set(driver.prepare([])), "after one block the proposer knows better"
        driver.block([*greedy[1:], *modest])
        driver.block(driver.prepare([]))
        assert driver.query("/queue").value == bytes(8)


def test_a_fresh_sender_and_a_fresh_contract_keep_nobody_out(tmp_path: Path, app_state: dict[str, Any]) -> None:
    """Calls with the whole meter of the EVM that use next to nothing, none like another: one runs a block, and others
    run beside it; so also for a contract that used all of a block once."""
    strangers = [Signer(bytes([0x30 + number]) * 32) for number in range(6)]
    modest = Signer(b"\x29" * 32)
    fresh = [Address(bytes([0x40 + number]) * 20) for number in range(3)]
    store = Store(tmp_path)

    def write_genesis(state: Overlay, genesis: Genesis) -> None:
        process_system_genesis(state, genesis)
        for contract in fresh:
            set_code(state, contract, LOOPS_WHEN_TOLD)

    def call(signer: Signer, nonce: int, contract: Address, *, gas: int, is_looping: bool = False) -> bytes:
        return signer.raw(nonce, to=contract, value=0, gas=gas, data=b"\x01" if is_looping else b"")

    alloc = {"0x" + each.address.hex(): str(10**20) for each in (*strangers, modest)}
    driver = Driver(ChainApplication(store, CONTRACTS, write_genesis), {**app_state, "alloc": alloc})
    driver.init_chain()
    whole = EVM_BLOCK_GAS + 21_000
    greedy = [call(signer, 0, contract, gas=whole) for signer, contract in zip(strangers, fresh, strict=False)]
    small = [call(modest, nonce, fresh[0], gas=100_000) for nonce in range(5)]
    for raw in greedy + small:
        assert driver.check(raw).code == 0
    assert driver.prepare([]) == [greedy[0], *small]
    assert {result.code for result in driver.block([greedy[0], *small]).tx_results} == {0}
    for raw in greedy[1:]:
        driver.block([raw])

    (burnt,) = driver.block([call(strangers[3], 0, fresh[0], gas=whole, is_looping=True)]).tx_results
    assert burnt.gas_used == whole, "it ran until all was used"
    greedy = [call(signer, 0, fresh[0], gas=whole) for signer in strangers[4:]]
    small = [call(modest, nonce, fresh[1], gas=100_000) for nonce in range(5, 10)]
    for raw in greedy + small:
        assert driver.check(raw).code == 0
    assert driver.prepare([]) == [greedy[0], *small]
    assert {result.code for result in driver.block([greedy[0], *small]).tx_results} == {0}
    store.close()


def test_the_closest_likeness_counts(alice: Any) -> None:
    guesses = GasGuesses()
    call = alice.transaction(0, gas=900_000, data=b"\x01\x02\x03\x04\x05", to=BOB)
    assert guesses.guess(call) == 900_000, "nothing like it was seen"
    guesses.learn([(call, 400_000)])
    stranger = replace(call, sender=Address(b"\x05" * 20))
    assert guesses.guess(stranger) == 400_000
    assert guesses.guess(replace(stranger, gas_limit=50_000)) == 50_000, "never more than it may use"
    guesses.learn([(replace(call, data=b"\x09"), 30_000)])
    assert guesses.guess(replace(stranger, data=b"\x0a")) == 350_000, "of the address: falls by an eighth"
    assert guesses.guess(replace(call, to=None)) == 350_000, "of the sender"
    assert guesses.guess(stranger) == 400_000
    guesses.learn((replace(call, to=Address(number.to_bytes(20, "big"))), 1) for number in range(MAX_KEYS))
    assert guesses.guess(stranger) == 900_000, "only so many are remembered"
