"""What waiting transactions will probably use, so that a proposal is filled by use and not by limits.

A limit costs nothing: a transaction that names the whole gas of a block and uses 21,000 would keep everybody else out
of that block, and a thousand of them of a thousand.  FinalizeBlock counts what was used, so the proposer does the same
with what calls like this one took in recent blocks.  No part of what is agreed: where it guesses too low, a transaction
is refused for lack of room and stays in the queue.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from chain.core.records import Transaction

MAX_KEYS = 8_192
"""That are remembered, those used last; a call has three."""
_DECAY_SHIFT = 3
"""A guess that is too high falls by an eighth a block that has such a call."""
_SELECTOR_BYTES = 4

_Key = tuple[str, bytes]


class GasGuesses:
    """The most gas that a recent call used: of the same function, to the same address, by the same sender."""

    __slots__ = ("_most",)

    def __init__(self) -> None:
        """Know no call."""
        self._most: OrderedDict[_Key, int] = OrderedDict()

    def guess(self, transaction: Transaction) -> int:
        """Return what a call or creation will probably use: its limit where nothing like it was seen."""
        for key in _keys(transaction):
            known = self._most.get(key)
            if known is not None:
                return min(transaction.gas_limit, known)
        return transaction.gas_limit

    def learn(self, used: Iterable[tuple[Transaction, int]]) -> None:
        """Take in what a block's calls and creations used, gas."""
        most: dict[_Key, int] = {}
        for transaction, gas in used:
            for key in _keys(transaction):
                most[key] = max(gas, most.get(key, 0))
        for key, gas in most.items():
            before = self._most.pop(key, 0)
            self._most[key] = max(gas, before - (before >> _DECAY_SHIFT))
        while len(self._most) > MAX_KEYS:
            self._most.popitem(last=False)


def _keys(transaction: Transaction) -> tuple[_Key, _Key, _Key]:
    """Return what a transaction is like, the closest likeness first; all creations are to one address."""
    to = transaction.to or b""
    return ("function", to + transaction.data[:_SELECTOR_BYTES]), ("to", to), ("from", transaction.sender)
