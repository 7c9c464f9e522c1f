"""``Sender``: one key's transactions, each landing once.

The nonce is kept locally and fetched anew when another process has used it.  Time-outs and "already known" never
lead to a second transaction: the hash is asked for, the same bytes are sent again, and only when the chain has
executed another transaction with the nonce (so ours can't land any more) is a new one signed.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from eth_hash.auto import keccak

from contracts.bindings.addresses import ADDRESSES
from contracts.bindings.client import ChainClient
from contracts.bindings.encoding import Event, decode_error, decode_log, encode_call, read_bytes, read_quantity
from contracts.bindings.errors import (
    ChainUnreachable,
    DeadlinePassed,
    NonceTaken,
    QueueFull,
    RpcError,
    TransactionFailed,
    TransactionRefused,
)
from contracts.bindings.failures import SEPARATOR
from contracts.bindings.keys import address_of
from contracts.bindings.signing import read_nonce, sign_transaction
from contracts.bindings.standstill import BlockWatch

log = logging.getLogger("chain")
"""Without a handler a warning is one plain line on stderr."""
T = TypeVar("T")

_POLL_SECONDS = 0.1
"""Between two looks for a receipt: a third of a devnet block."""
_FIRST_REBROADCAST_SECONDS = 0.75
_LAST_REBROADCAST_SECONDS = 6.0
"""Without a receipt the same bytes are sent again after 0.75 s, 1.5 s, ... 6 s: a node may have restarted."""
_FEE_SECONDS = 30.0
"""How long fetched fees are used."""
_GAS_MARGIN_PERCENT = 130
"""Of the estimate: the state may move before the transaction runs."""
_TRANSFER_GAS = 21_000
"""Intrinsic gas of a plain transfer (yellow paper, appendix G)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A transaction that succeeded."""

    transaction_hash: bytes
    height: int
    gas_used: int
    fee: int
    """Wei."""
    events: tuple[Event, ...]
    """In order, those of the system contracts."""

    def event(self, name: str) -> Event:
        """Return the first event of a name, or raise KeyError."""
        for event in self.events:
            if event.name == name:
                return event
        raise KeyError(f"no event {name} among {[event.name for event in self.events]}")


class Sender:
    """Signs, broadcasts and waits for one key; threads may share it."""

    def __init__(self, client: ChainClient, private_key: bytes) -> None:
        """Nothing is asked of the chain yet."""
        self._client = client
        self._private_key = private_key
        self.address: str = address_of(private_key)
        self._lock = threading.Lock()
        self._next_nonce: int | None = None
        self._reserved: set[int] = set()
        self._fees: tuple[int, int] | None = None
        self._fees_at = 0.0

    def send(
        self,
        contract: str,
        function: str,
        *args: Any,
        value: int = 0,
        gas: int | None = None,
        deadline_seconds: float = 30,
    ) -> Outcome:
        """Sign, broadcast and wait; raise ContractError before anything is paid where the call would fail."""
        data = encode_call(contract, function, args)
        return self._send(ADDRESSES[contract], data, value, gas, deadline_seconds)

    def transfer(self, to: str, amount: int, *, deadline_seconds: float = 30) -> Outcome:
        """Move wei to an address and wait."""
        return self._send(to, b"", amount, _TRANSFER_GAS, deadline_seconds)

    def sign(self, contract: str, function: str, *args: Any, value: int = 0, gas: int | None = None) -> bytes:
        """Reserve the next nonce and return the raw transaction; broadcast it, or call ``forget``."""
        data = encode_call(contract, function, args)
        limit = gas if gas is not None else self._estimate(ADDRESSES[contract], data, value)
        return self._sign(ADDRESSES[contract], data, value, limit)

    def broadcast(self, raw: bytes) -> bytes:
        """Hand the bytes to the chain and return their hash; the chain knowing them already is success.

        Raises NonceTaken (sign again), QueueFull (try later), TransactionRefused, or ChainUnreachable (the bytes may
        have arrived all the same: ``wait``).
        """
        transaction_hash = keccak(raw)
        try:
            self._client.request("eth_sendRawTransaction", "0x" + raw.hex())
        except RpcError as e:
            if "already known" in e.message or transaction_hash.hex() in e.message:
                return transaction_hash
            if _is_nonce_conflict(e.message):
                if self._is_known(transaction_hash):
                    return transaction_hash
                self.forget(raw)
                raise NonceTaken(e.code, e.message, e.data) from e
            self.forget(raw)
            if "send again" in e.message:
                raise QueueFull(e.code, e.message, e.data) from e
            raise TransactionRefused(e.code, self._name_payer(e.message), e.data) from e
        return transaction_hash

    def wait(self, transaction_hash: bytes, deadline_seconds: float = 30, *, raw: bytes | None = None) -> Outcome:
        """Wait for the receipt; with ``raw``, send the same bytes again now and then.

        Raises ContractError or TransactionFailed (mined but failed), NonceTaken (another transaction has the
        nonce, so this one can't land), or DeadlinePassed.
        """
        if raw is None:
            return self._wait(transaction_hash, deadline_seconds, None, None)
        nonce = read_nonce(raw)
        try:
            return self._wait(transaction_hash, deadline_seconds, raw, nonce)
        finally:
            self._release(nonce)

    def forget(self, raw: bytes) -> None:
        """Give back the nonce of signed bytes that never will be broadcast."""
        self._release(read_nonce(raw))
        with self._lock:
            self._next_nonce = None

    def _wait(self, transaction_hash: bytes, deadline_seconds: float, raw: bytes | None, nonce: int | None) -> Outcome:
        started = time.monotonic()
        pause_seconds = _FIRST_REBROADCAST_SECONDS
        rebroadcast_at = started + pause_seconds
        watch, why = BlockWatch(self._client.height, self._client.ask_consensus), ""
        while True:
            try:
                count, outcome = self._look(transaction_hash)
                if outcome is not None:
                    return outcome
                if nonce is not None and count > nonce:
                    raise NonceTaken(-32000, f"nonce {nonce} was used by another transaction, next is {count}")
                if raw is not None and nonce is not None and time.monotonic() >= rebroadcast_at:
                    pause_seconds = min(2 * pause_seconds, _LAST_REBROADCAST_SECONDS)
                    rebroadcast_at = time.monotonic() + pause_seconds
                    self._broadcast_again(raw)
                    self._fill_gap(nonce)
            except ChainUnreachable as e:
                if time.monotonic() - started >= deadline_seconds:
                    raise DeadlinePassed(transaction_hash, deadline_seconds) from e
            found = watch.look()
            if found and not why:
                log.warning("warning: %s", found)
            why = found or why
            if time.monotonic() - started >= deadline_seconds:
                raise DeadlinePassed(transaction_hash, deadline_seconds, why)
            time.sleep(_POLL_SECONDS)

    def _send(self, to: str, data: bytes, value: int, gas: int | None, deadline_seconds: float) -> Outcome:
        deadline = time.monotonic() + deadline_seconds
        limit = gas if gas is not None else _until(deadline, lambda: self._estimate(to, data, value))
        while True:
            raw = _until(deadline, lambda: self._sign(to, data, value, limit))
            transaction_hash = keccak(raw)
            try:
                with contextlib.suppress(ChainUnreachable):  # it may have arrived all the same: ask by hash
                    self.broadcast(raw)
                return self.wait(transaction_hash, max(0.0, deadline - time.monotonic()), raw=raw)
            except (NonceTaken, QueueFull):
                if time.monotonic() >= deadline:
                    raise
                with self._lock:
                    self._next_nonce = None
                time.sleep(_POLL_SECONDS)

    def _sign(self, to: str, data: bytes, value: int, gas: int) -> bytes:
        max_fee, tip = self._get_fees()
        self._client.chain_id()  # asked before a nonce is reserved: it may fail
        return self._sign_with(self._reserve(), to, data, value, gas, max_fee, tip)

    def _sign_with(self, nonce: int, to: str, data: bytes, value: int, gas: int, max_fee: int, tip: int) -> bytes:
        return sign_transaction(
            self._private_key,
            chain_id=self._client.chain_id(),
            nonce=nonce,
            max_priority_fee=tip,
            max_fee=max_fee,
            gas=gas,
            to=bytes.fromhex(to.removeprefix("0x")),
            value=value,
            data=data,
        )

    def _reserve(self) -> int:
        with self._lock:
            if self._next_nonce is None:
                self._next_nonce = self._client.nonce(self.address, is_pending=True)
            while self._next_nonce in self._reserved:
                self._next_nonce += 1
            nonce = self._next_nonce
            self._reserved.add(nonce)
            self._next_nonce += 1
            return nonce

    def _release(self, nonce: int) -> None:
        with self._lock:
            self._reserved.discard(nonce)

    def _name_payer(self, message: str) -> str:
        """Say whose balance is too low, and on which chain: the node knows both, its message doesn't name them."""
        what, _, _ = message.partition(SEPARATOR)
        if "insufficient" not in what.lower():
            return message
        where = self._client.describe_chain()
        return f"{what} {where}{SEPARATOR}fund {self.address} there; on a devnet: localnet fund {self.address}"

    def _estimate(self, to: str, data: bytes, value: int) -> int:
        call = {"from": self.address, "to": to, "data": "0x" + data.hex(), "value": hex(value)}
        try:
            estimate = self._client.interpret([("eth_estimateGas", (call,))], lambda results: read_quantity(results[0]))
        except RpcError as e:
            named = self._name_payer(e.message)
            if named == e.message:
                raise
            raise TransactionRefused(e.code, named, e.data) from e
        return estimate * _GAS_MARGIN_PERCENT // 100

    def _get_fees(self) -> tuple[int, int]:
        if self._fees is None or time.monotonic() > self._fees_at + _FEE_SECONDS:
            base, tip = self._client.interpret(
                [("eth_getBlockByNumber", ("latest", False)), ("eth_maxPriorityFeePerGas", ())],
                lambda results: (read_quantity(results[0]["baseFeePerGas"]), read_quantity(results[1])),
            )
            self._fees = (2 * base + tip, tip)
            self._fees_at = time.monotonic()
        return self._fees

    def _look(self, transaction_hash: bytes) -> tuple[int, Outcome | None]:
        # The count comes first: where it is past our nonce, a receipt of ours would be there already.
        return self._client.interpret(
            [
                ("eth_getTransactionCount", (self.address, "latest")),
                ("eth_getTransactionReceipt", ("0x" + transaction_hash.hex(),)),
            ],
            lambda results: (
                read_quantity(results[0]),
                None if results[1] is None else self._outcome(transaction_hash, results[1]),
            ),
        )

    def _is_known(self, transaction_hash: bytes) -> bool:
        return self._client.request("eth_getTransactionByHash", "0x" + transaction_hash.hex()) is not None

    def _broadcast_again(self, raw: bytes) -> None:
        with contextlib.suppress(RpcError):  # known, mined or overtaken: the next look says which
            self._client.request("eth_sendRawTransaction", "0x" + raw.hex())

    def _fill_gap(self, nonce: int) -> None:
        """Use up a lower nonce that was given back after a refusal: what is queued behind it would never run."""
        free = self._client.nonce(self.address, is_pending=True)
        with self._lock:
            if free >= nonce or free in self._reserved:
                return
            self._reserved.add(free)
        max_fee, tip = self._get_fees()
        self._broadcast_again(self._sign_with(free, self.address, b"", 0, _TRANSFER_GAS, max_fee, tip))
        self._release(free)

    def _outcome(self, transaction_hash: bytes, receipt: dict[str, Any]) -> Outcome:
        height, gas_used = read_quantity(receipt["blockNumber"]), read_quantity(receipt["gasUsed"])
        if read_quantity(receipt["status"]) == 0:
            known = decode_error(read_bytes(receipt.get("revertReason", "0x")))
            if known is not None:
                raise known
            raise TransactionFailed(transaction_hash, height, receipt.get("error", ""))
        decoded = (decode_log(log) for log in receipt["logs"])
        return Outcome(
            transaction_hash=transaction_hash,
            height=height,
            gas_used=gas_used,
            fee=gas_used * read_quantity(receipt["effectiveGasPrice"]),
            events=tuple(event for event in decoded if event is not None),
        )


def _until(deadline: float, attempt: Callable[[], T]) -> T:
    """Try until an answer comes or the deadline (monotonic seconds) is past."""
    while True:
        try:
            return attempt()
        except ChainUnreachable:
            if time.monotonic() >= deadline:
                raise
            time.sleep(_POLL_SECONDS)


def _is_nonce_conflict(message: str) -> bool:
    lowered = message.lower()
    return "nonce too low" in lowered or "is taken by" in lowered or "replacement transaction" in lowered
