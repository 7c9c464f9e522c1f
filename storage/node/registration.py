"""Put the node on the chain: wait for funds, register once, follow changes of URL and capacity.

Idempotent: a node that is already registered spends nothing, and a start that was cut is simply repeated.
The port to the chain is ``storage.node.rpc``'s.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from contracts.bindings.errors import BindingError, ContractError, TransactionFailed
from contracts.bindings.types import StorageNode, StorageNodeState
from storage.core.errors import ChainUnreachable, NotFunded, WrongReceiptKey
from storage.node.keys import ReceiptKey

log = logging.getLogger(__name__)

REMIND_SECONDS = 10.0
"""How often people are reminded of missing funds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Funds:
    """What the operator's account has."""

    balance: int
    """Wei."""
    needed: int
    """Wei that registration may cost."""
    where: str
    """Names the chain, for people."""


class RegistrationPort(Protocol):
    """What registration asks of the chain."""

    def get_node(self) -> StorageNode:
        """Return the operator's node, state NONE where there is none."""

    def get_funds(self) -> Funds:
        """Return what there is, and what registration may cost."""

    def get_genesis_hash(self) -> bytes:
        """Return the 32 bytes that the key proof is bound to."""

    def register(self, *, url: str, key: bytes, key_proof: bytes, capacity_bytes: int) -> None:
        """Send registerNode and wait."""

    def update(self, *, url: str, capacity_bytes: int) -> None:
        """Send updateNode and wait."""


class RegistrationState(StrEnum):
    """How far it got; shown in the status."""

    WAITING_FOR_CHAIN = "waiting for chain"
    WAITING_FOR_FUNDS = "waiting for funds"
    REGISTERED = "registered"
    RETIRING = "retiring"
    """It takes no new seat: its operator retired it, or it was slashed."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """What is to be registered."""

    address: str
    """The operator's, checksummed."""
    url: str
    capacity_bytes: int
    key: ReceiptKey
    funds_deadline_seconds: float
    """How long an unfunded account is waited for, counted from when the chain first said so."""
    poll_seconds: float
    rejoins: bool = False
    """Whether a node that was retired registers again."""


def ensure_registered(
    port: RegistrationPort,
    wanted: Registration,
    *,
    stop: threading.Event,
    report: Callable[[RegistrationState], None],
) -> None:
    """Return when the node stands on the chain as wanted, or ``stop`` is set.

    A chain that is down is waited for without limit; the node serves meanwhile.

    Raises: NotFunded after the deadline; WrongReceiptKey; ContractError or TransactionFailed when the chain refuses
    the node for good.
    """
    report(RegistrationState.WAITING_FOR_CHAIN)
    funds = _FundsWait(wanted)
    said = ""
    while not stop.is_set():
        try:
            if _try(port, wanted, funds, report):
                return
        except ContractError as error:
            if error.name != "NodeAlreadyRegistered":
                report(RegistrationState.FAILED)
                raise
        except TransactionFailed:
            # Mined, paid for and failed: repeating it would only burn the funds.
            report(RegistrationState.FAILED)
            raise
        except (ChainUnreachable, BindingError) as error:
            if type(error).__name__ != said:
                log.warning("registration waits: %s", error)
            said = type(error).__name__
        stop.wait(wanted.poll_seconds)


def _try(
    port: RegistrationPort,
    wanted: Registration,
    funds: _FundsWait,
    report: Callable[[RegistrationState], None],
) -> bool:
    node = port.get_node()
    is_known = node.state is not StorageNodeState.NONE
    if is_known and node.key != wanted.key.public:
        report(RegistrationState.FAILED)
        raise WrongReceiptKey(address=wanted.address, expected=node.key, got=wanted.key.public)
    is_retired = node.state is StorageNodeState.RETIRING
    if is_retired and not wanted.rejoins:
        log.warning(
            "node %s is retired: it serves what it has and takes no new seat; next: start it with --rejoin, or "
            "run it until storage-node drain says that its bond is free",
            wanted.address,
        )
        report(RegistrationState.RETIRING)
        return True
    if is_known and not is_retired and node.url == wanted.url and node.capacity_bytes == wanted.capacity_bytes:
        report(RegistrationState.REGISTERED)
        return True
    found = port.get_funds()
    if found.balance < found.needed:
        report(RegistrationState.WAITING_FOR_FUNDS)
        funds.check(found)
        return False
    if is_known and not is_retired:
        port.update(url=wanted.url, capacity_bytes=wanted.capacity_bytes)
        log.info("node updated on the chain: %s, %d bytes", wanted.url, wanted.capacity_bytes)
    else:
        proof = wanted.key.prove(port.get_genesis_hash(), bytes.fromhex(wanted.address[2:]))
        port.register(url=wanted.url, key=wanted.key.public, key_proof=proof, capacity_bytes=wanted.capacity_bytes)
        log.info("node registered: a seat comes with the next committee epoch")
    report(RegistrationState.REGISTERED)
    return True


class _FundsWait:
    """Counts the time without funds and reminds people."""

    def __init__(self, wanted: Registration) -> None:
        self._wanted = wanted
        self._since: float | None = None
        self._said_at = float("-inf")

    def check(self, found: Funds) -> None:
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        error = NotFunded(address=self._wanted.address, balance=found.balance, needed=found.needed, where=found.where)
        if now - self._since >= self._wanted.funds_deadline_seconds:
            raise error
        if now - self._said_at >= REMIND_SECONDS:
            self._said_at = now
            log.warning("waiting for funds: %s", error)
