"""Registration: once, with funds, following changes; a chain that is away is waited for."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field, replace

import pytest

from contracts.bindings.errors import ContractError, DeadlinePassed, TransactionFailed
from contracts.bindings.types import StorageNode, StorageNodeState
from da.core.receipt import is_key_proof_valid
from storage.core.errors import ChainUnreachable, NotFunded, WrongReceiptKey
from storage.node.keys import ReceiptKey
from storage.node.registration import Funds, Registration, RegistrationState, ensure_registered

GENESIS_HASH = bytes(range(32))
ADDRESS = "0x" + "Ab" * 20
NOBODY = StorageNode(
    operator=ADDRESS, key=bytes(32), url="", capacity_bytes=0, state=StorageNodeState.NONE, registered_height=0
)


@dataclass
class FakePort:
    """RegistrationPort in memory; ``script`` is what goes wrong, call by call."""

    node: StorageNode = NOBODY
    balance: int = 10**18
    failures: list[Exception] = field(default_factory=list)
    sent: list[str] = field(default_factory=list)
    income_per_question: int = 0

    def get_node(self) -> StorageNode:
        if self.failures:
            raise self.failures.pop(0)
        return self.node

    def get_funds(self) -> Funds:
        self.balance += self.income_per_question
        return Funds(balance=self.balance, needed=10**15, where="on chain id 7 at http://chain:8545")

    def get_genesis_hash(self) -> bytes:
        return GENESIS_HASH

    def register(self, *, url: str, key: bytes, key_proof: bytes, capacity_bytes: int) -> None:
        assert is_key_proof_valid(key, key_proof, genesis_hash=GENESIS_HASH, operator_address=bytes.fromhex("ab" * 20))
        self.sent.append("register")
        self.node = replace(NOBODY, key=key, url=url, capacity_bytes=capacity_bytes, state=StorageNodeState.REGISTERED)

    def update(self, *, url: str, capacity_bytes: int) -> None:
        self.sent.append("update")
        self.node = replace(self.node, url=url, capacity_bytes=capacity_bytes)


WANTED = Registration(
    address=ADDRESS,
    url="http://store:9001",
    capacity_bytes=10**9,
    key=ReceiptKey(bytes(range(32))),
    funds_deadline_seconds=0.05,
    poll_seconds=0.01,
)


def run(port: FakePort, wanted: Registration = WANTED) -> list[RegistrationState]:
    states: list[RegistrationState] = []
    ensure_registered(port, wanted, stop=threading.Event(), report=states.append)
    return states


def test_registers_once_and_never_again() -> None:
    port = FakePort()
    assert run(port)[-1] is RegistrationState.REGISTERED
    assert run(port)[-1] is RegistrationState.REGISTERED
    assert port.sent == ["register"]


def test_a_registered_node_needs_no_funds() -> None:
    port = FakePort()
    run(port)
    port.balance = 0
    assert run(port)[-1] is RegistrationState.REGISTERED


@pytest.mark.parametrize("change", [{"url": "http://moved:9001"}, {"capacity_bytes": 2 * 10**9}])
def test_changes_are_followed(change: dict[str, object]) -> None:
    port = FakePort()
    run(port)
    run(port, replace(WANTED, **change))  # type: ignore[arg-type]
    assert port.sent == ["register", "update"]


def test_a_retired_node_serves_and_comes_back_when_told(caplog: pytest.LogCaptureFixture) -> None:
    """A node that was slashed while it was away must not wait for ever without a word."""
    port = FakePort()
    run(port)
    port.node = replace(port.node, state=StorageNodeState.RETIRING)
    with caplog.at_level(logging.WARNING):
        assert run(port)[-1] is RegistrationState.RETIRING
    assert "start it with --rejoin" in caplog.text
    assert port.sent == ["register"]
    assert run(port, replace(WANTED, rejoins=True))[-1] is RegistrationState.REGISTERED
    assert port.sent == ["register", "register"]
    assert port.node.state is StorageNodeState.REGISTERED


def test_funds_are_waited_for_and_the_message_says_where_to(caplog: pytest.LogCaptureFixture) -> None:
    port = FakePort(balance=0, income_per_question=5 * 10**14)
    with caplog.at_level(logging.WARNING):
        states = run(port, replace(WANTED, funds_deadline_seconds=30.0))
    assert states == [
        RegistrationState.WAITING_FOR_CHAIN,
        RegistrationState.WAITING_FOR_FUNDS,
        RegistrationState.REGISTERED,
    ]
    assert f"localnet fund {ADDRESS}" in caplog.text


WITHOUT_FUNDS = (
    f"account {ADDRESS} has 0.000000007 gwei on chain id 7 at http://chain:8545, registration needs 0.001 tokens, "
    f"{10**15 - 7} wei more; next: send it 0.001 tokens or more there, on a devnet: localnet fund {ADDRESS}"
)


def test_invalid_without_funds_until_the_deadline() -> None:
    port = FakePort(balance=7)
    with pytest.raises(NotFunded, match=WITHOUT_FUNDS):
        run(port)
    assert port.sent == []


def test_a_chain_that_is_away_is_waited_for() -> None:
    port = FakePort(failures=[ChainUnreachable("away")] * 5 + [DeadlinePassed(bytes(32), 30.0)])  # type: ignore[list-item]
    assert run(port)[-1] is RegistrationState.REGISTERED
    assert port.sent == ["register"]


def test_invalid_another_receipt_key() -> None:
    port = FakePort()
    run(port)
    with pytest.raises(WrongReceiptKey, match="use the home that registered it"):
        run(port, replace(WANTED, key=ReceiptKey(bytes(32))))


def test_invalid_what_the_chain_refuses_for_good() -> None:
    port = FakePort(failures=[ContractError("BadUrl", {"reason": "no scheme"}, "BadUrl: reason no scheme")])
    with pytest.raises(ContractError, match="no scheme"):
        run(port)


def test_invalid_a_transaction_that_failed_is_not_paid_for_again() -> None:
    port = FakePort(failures=[TransactionFailed(bytes(32), 7, "out of gas")])
    with pytest.raises(TransactionFailed, match="block 7"):
        run(port)


def test_a_race_with_an_earlier_attempt_is_won_by_looking_again() -> None:
    error = ContractError("NodeAlreadyRegistered", {"operator": ADDRESS}, "NodeAlreadyRegistered")
    port = FakePort(failures=[error])
    assert run(port)[-1] is RegistrationState.REGISTERED


def test_a_stop_ends_the_wait() -> None:
    stop = threading.Event()
    stop.set()
    states: list[RegistrationState] = []
    ensure_registered(FakePort(), WANTED, stop=stop, report=states.append)
    assert states == [RegistrationState.WAITING_FOR_CHAIN]
