"""Verdicts on raw transactions: each costs some 60 us, and CometBFT shows a transaction several times."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from chain.core.errors import InvalidTransaction
from chain.core.records import Transaction
from chain.core.transactions import decode_transaction

MAX_VERDICTS = 100_000
"""Decoded transactions that are remembered: twice the mempool."""

MAX_VERDICT_BYTES = 128 << 20
"""Bytes of those."""


class VerdictCache:
    """Transactions that were decoded and verified for one chain, by their bytes, so that none is verified twice."""

    __slots__ = ("_chain_id", "_num_bytes", "_verdicts")

    def __init__(self) -> None:
        """Start empty."""
        self._verdicts: OrderedDict[bytes, Transaction | InvalidTransaction] = OrderedDict()
        self._num_bytes = 0
        self._chain_id = 0

    def __contains__(self, raw: bytes) -> bool:
        """Say whether a verdict is known."""
        return raw in self._verdicts

    def decode(self, raw: bytes, chain_id: int) -> Transaction | InvalidTransaction:
        """Return the transaction, or why it is none."""
        if chain_id != self._chain_id:
            self._forget_all(chain_id)
        verdict = self._verdicts.get(raw)
        if verdict is not None:
            return verdict
        try:
            verdict = decode_transaction(raw, chain_id)
        except InvalidTransaction as error:
            verdict = error.with_traceback(None)
        self._add(raw, verdict)
        return verdict

    def learn(self, raw: bytes, transaction: Transaction) -> None:
        """Take over what was verified elsewhere."""
        if transaction.chain_id != self._chain_id:
            self._forget_all(transaction.chain_id)
        if raw not in self._verdicts:
            self._add(raw, transaction)

    def forget(self, transactions: Iterable[Transaction]) -> None:
        """Drop what was executed: it doesn't come again."""
        for transaction in transactions:
            if self._verdicts.pop(transaction.raw, None) is not None:
                self._num_bytes -= len(transaction.raw)

    def _add(self, raw: bytes, verdict: Transaction | InvalidTransaction) -> None:
        self._verdicts[raw] = verdict
        self._num_bytes += len(raw)
        while len(self._verdicts) > MAX_VERDICTS or self._num_bytes > MAX_VERDICT_BYTES:
            oldest, _ = self._verdicts.popitem(last=False)
            self._num_bytes -= len(oldest)

    def _forget_all(self, chain_id: int) -> None:
        self._verdicts.clear()
        self._num_bytes = 0
        self._chain_id = chain_id
