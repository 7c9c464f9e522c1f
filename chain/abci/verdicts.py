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
    """Transactions that were decoded and verified, by their bytes, so that none is verified twice."""

    __slots__ = ("_num_bytes", "_verdicts")

    def __init__(self) -> None:
        """Start empty."""
        self._verdicts: OrderedDict[bytes, Transaction | InvalidTransaction] = OrderedDict()
        self._num_bytes = 0

    def decode(self, raw: bytes, chain_id: int) -> Transaction | InvalidTransaction:
        """Return the transaction, or why it is none."""
        verdict = self._verdicts.get(raw)
        if verdict is not None:
            return verdict
        try:
            verdict = decode_transaction(raw, chain_id)
        except InvalidTransaction as error:
            verdict = error.with_traceback(None)
        self._verdicts[raw] = verdict
        self._num_bytes += len(raw)
        while len(self._verdicts) > MAX_VERDICTS or self._num_bytes > MAX_VERDICT_BYTES:
            oldest, _ = self._verdicts.popitem(last=False)
            self._num_bytes -= len(oldest)
        return verdict

    def forget(self, transactions: Iterable[Transaction]) -> None:
        """Drop what was executed: it doesn't come again."""
        for transaction in transactions:
            if self._verdicts.pop(transaction.raw, None) is not None:
                self._num_bytes -= len(transaction.raw)
