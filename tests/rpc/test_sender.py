"""``Sender`` against the solo chain: each transaction lands once, whatever the network and other processes do."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from eth_account import Account
from eth_hash.auto import keccak

from contracts.bindings.client import ChainClient
from contracts.bindings.errors import (
    ChainUnreachable,
    ContractError,
    DeadlinePassed,
    NonceTaken,
    TransactionFailed,
    TransactionRefused,
)
from contracts.bindings.sender import Sender

WEI = 10**18


class Unsteady(ChainClient):
    """A client whose answers to broadcasts get lost, after or before the node has seen them."""

    num_lost_after = 0
    num_lost_before = 0

    def request(self, method: str, *params: Any) -> Any:
        if method == "eth_sendRawTransaction" and self.num_lost_before > 0:
            self.num_lost_before -= 1
            raise ChainUnreachable([("stub", "connection refused")])
        result = super().request(method, *params)
        if method == "eth_sendRawTransaction" and self.num_lost_after > 0:
            self.num_lost_after -= 1
            raise ChainUnreachable([("stub", "timed out")])
        return result


@pytest.fixture
def rich(solo: Any) -> Sender:
    account = Account.create()
    solo.faucet.transfer(account.address, 50 * WEI)
    return Sender(solo.client, bytes(account.key))


def compute_hash(raw: bytes) -> bytes:
    return bytes(keccak(raw))


def unsteady_of(solo: Any, rich: Sender) -> tuple[Unsteady, Sender]:
    client = Unsteady([solo.url])
    return client, Sender(client, rich._private_key)


def test_outcome_has_events_and_fee(solo: Any, rich: Sender) -> None:
    before = solo.client.balance(rich.address)
    outcome = rich.send("Staking", "bond", value=3)
    assert outcome.event("Bonded").fields == {"owner": rich.address, "amount": 3}
    assert solo.client.balance(rich.address) == before - 3 - outcome.fee
    assert solo.client.staking.bond_of(rich.address) == 3
    assert outcome.height == solo.chain.height


def test_a_call_that_would_fail_costs_nothing_and_says_why(solo: Any, rich: Sender) -> None:
    before = solo.client.balance(rich.address)
    with pytest.raises(ContractError) as caught:
        rich.send("Staking", "unbond", 7)
    assert caught.value.name == "InsufficientBond"
    assert caught.value.fields == {"expected": 7, "got": 0}
    assert str(caught.value) == "InsufficientBond: expected 7 wei, got 0 wei; next: ask bondOf(you)"
    assert solo.client.balance(rich.address) == before
    assert rich.send("Staking", "bond", value=1).gas_used > 21_000


def test_a_mined_failure_says_the_same(rich: Sender) -> None:
    with pytest.raises(ContractError, match="InsufficientBond: expected 7 wei, got 0 wei"):
        rich.send("Staking", "unbond", 7, gas=300_000)
    with pytest.raises(TransactionFailed, match="out of gas: limit 30000"):
        rich.send("Staking", "bond", value=1, gas=30_000)


@pytest.mark.parametrize(("before", "after"), [(0, 1), (2, 0), (1, 2)])
def test_a_lost_answer_never_sends_twice(solo: Any, rich: Sender, before: int, after: int) -> None:
    client, sender = unsteady_of(solo, rich)
    nonce = solo.client.nonce(rich.address)
    client.num_lost_before, client.num_lost_after = before, after
    to = Account.create().address
    outcome = sender.transfer(to, 5)
    assert solo.client.balance(to) == 5
    assert solo.client.nonce(rich.address) == nonce + 1
    assert outcome.height <= solo.chain.height
    client.close()


def test_raw_bytes_sent_twice_are_one_transaction(solo: Any, rich: Sender) -> None:
    nonce = solo.client.nonce(rich.address)
    raw = rich.sign("Staking", "bond", value=2)
    first = rich.broadcast(raw)
    assert rich.broadcast(raw) == first
    assert rich.wait(first, raw=raw).transaction_hash == first
    restarted = Sender(solo.client, rich._private_key)
    assert restarted.broadcast(raw) == first
    assert restarted.wait(first).height == rich.wait(first).height
    assert solo.client.nonce(rich.address) == nonce + 1


def test_nonce_used_by_another_process_is_fetched_anew(solo: Any, rich: Sender) -> None:
    other = Sender(solo.client, rich._private_key)
    rich.transfer(Account.create().address, 1)
    other.transfer(Account.create().address, 1)
    rich.transfer(Account.create().address, 1)
    raw = rich.sign("Staking", "bond", value=1)
    other.transfer(Account.create().address, 1)
    with pytest.raises(NonceTaken, match="nonce too low"):
        rich.broadcast(raw)
    assert rich.transfer(Account.create().address, 1).height == solo.chain.height


def test_overtaken_transaction_is_noticed_while_waiting(solo: Any, rich: Sender) -> None:
    other = Sender(solo.client, rich._private_key)
    raw = rich.sign("Staking", "bond", value=1)
    other.transfer(Account.create().address, 1)
    with pytest.raises(NonceTaken, match=r"nonce \d+ was used by another transaction"):
        rich.wait(b"\x01" * 32, 5, raw=raw)


def test_deadline_names_the_hash_and_the_transaction_may_still_land(solo: Any, rich: Sender) -> None:
    solo.chain.is_automatic = False
    to = Account.create().address
    with pytest.raises(DeadlinePassed, match="don't send another") as caught:
        rich.transfer(to, 4, deadline_seconds=0.5)
    solo.chain.mine()
    assert rich.wait(caught.value.transaction_hash).height == solo.chain.height
    assert solo.client.balance(to) == 4


def test_poor_sender_is_told_where_to_send_money(solo: Any) -> None:
    poor = Sender(solo.client, b"\x42" * 32)
    with pytest.raises(
        TransactionRefused,
        match=f"balance 0 wei, .* on chain id \\d+ at http.*; next: fund {poor.address}.*{poor.address}$",
    ):
        poor.transfer(Account.create().address, 0)


def test_a_nonce_given_back_leaves_no_gap_for_those_behind_it(solo: Any, rich: Sender) -> None:
    refused = rich.sign("Staking", "bond", value=1)
    behind = rich.sign("Staking", "bond", value=2)
    rich.broadcast(behind)
    rich.forget(refused)
    assert rich.wait(compute_hash(behind), 20, raw=behind).event("Bonded").fields["amount"] == 2
    assert solo.client.staking.bond_of(rich.address) == 2


def test_silent_core_is_waited_for(solo: Any, rich: Sender) -> None:
    solo.chain.is_silent = True
    with pytest.raises(ChainUnreachable, match="CometBFT does not answer"):
        rich.broadcast(rich.sign("Staking", "bond", value=1, gas=200_000))
    threading.Timer(0.5, lambda: setattr(solo.chain, "is_silent", False)).start()
    assert rich.send("Staking", "bond", value=1).height == solo.chain.height


def test_fifty_threads_share_one_key(solo: Any, rich: Sender) -> None:
    nonce = solo.client.nonce(rich.address)
    failures: list[BaseException] = []

    def send() -> None:
        try:
            rich.transfer(Account.create().address, 1, deadline_seconds=60)
        except BaseException as e:  # noqa: BLE001 -- shown by the assertion below
            failures.append(e)

    threads = [threading.Thread(target=send) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    assert solo.client.nonce(rich.address) == nonce + 50
    assert rich._reserved == set()
