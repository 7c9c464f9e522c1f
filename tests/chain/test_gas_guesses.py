"""A gas limit that is named and not used keeps nobody out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from abci_driver import Driver
from conftest import BOB, COUNTER

from chain.abci.application import ChainApplication
from chain.abci.gas_guesses import MAX_KEYS, GasGuesses
from chain.core.genesis import process_genesis
from chain.core.types import Address
from chain.store import Store

BLOCK_GAS = 60_000_000


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
