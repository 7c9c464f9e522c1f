"""Transactions to the Training contract, behind ``SenderPort``."""

from __future__ import annotations

import contextlib
from typing import Any

from eth_hash.auto import keccak

from contracts.bindings.errors import ChainUnreachable
from contracts.bindings.sender import Outcome, Sender


class TrainingSender:
    """One key's calls of the Training contract."""

    def __init__(self, sender: Sender) -> None:
        """Sign with the sender's key."""
        self._sender = sender

    @property
    def address(self) -> str:
        """Checksummed address of the key."""
        return self._sender.address

    def send(self, function: str, *args: Any, value: int = 0, deadline_seconds: float = 30.0) -> Outcome:
        """Sign, broadcast and wait."""
        return self._sender.send("Training", function, *args, value=value, deadline_seconds=deadline_seconds)

    def sign(self, function: str, *args: Any, value: int = 0) -> bytes:
        """Return a raw signed transaction with the key's next nonce."""
        return self._sender.sign("Training", function, *args, value=value)

    def deliver(self, raw: bytes, deadline_seconds: float) -> Outcome:
        """Broadcast the bytes and wait for their receipt; the chain knowing them already is success."""
        transaction_hash = compute_hash(raw)
        with contextlib.suppress(ChainUnreachable):  # they may have arrived all the same: ask by hash
            transaction_hash = self._sender.broadcast(raw)
        return self._sender.wait(transaction_hash, deadline_seconds, raw=raw)


def compute_hash(raw: bytes) -> bytes:
    """Return a raw transaction's hash."""
    return bytes(keccak(raw))
