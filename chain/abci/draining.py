"""Looks at CometBFT's sockets while a block is executed: whatever it writes is taken off its hands at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from chain.core.errors import InvalidTransaction
from chain.core.records import Transaction

DRAIN_TRANSACTIONS = 16
"""Executed between two looks at CometBFT's sockets: some 5 ms of training commits."""


class Draining(Sequence[Transaction | InvalidTransaction]):
    """The transactions of a block; who walks over them calls ``drain`` now and then."""

    def __init__(self, transactions: list[Transaction | InvalidTransaction], drain: Callable[[], None]) -> None:
        """Walk ``transactions``."""
        self._transactions = transactions
        self._drain = drain

    def __len__(self) -> int:
        return len(self._transactions)

    def __getitem__(self, index: Any) -> Any:
        return self._transactions[index]

    def __iter__(self) -> Iterator[Transaction | InvalidTransaction]:
        for index, transaction in enumerate(self._transactions):
            if index % DRAIN_TRANSACTIONS == 0:
                self._drain()
            yield transaction


def do_nothing() -> None:
    """Drain nothing, where no server is attached."""
