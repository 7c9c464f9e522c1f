"""What calls to users' contracts will probably take of the EVM's meter, so that a proposal can be full.

A call reserves its whole gas limit until it has run, and most of what a write pays is no work
(``chain.core.evm.gas``): a proposal by limits would hold an eighth of what the block can execute.  So the proposer
counts what calls to the same contract took in recent blocks.  No part of what is agreed: a wrong guess means that
FinalizeBlock finds no room for a transaction, which stays in the queue for the next block.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

from chain.core.types import Address

MAX_CONTRACTS = 1_024
"""That are remembered: those called last."""
_DECAY_SHIFT = 3
"""A guess that is too high falls by an eighth a block."""


class EvmWork:
    """The most that a recent call took, by contract."""

    __slots__ = ("_most",)

    def __init__(self) -> None:
        """Know no contract."""
        self._most: OrderedDict[Address, int] = OrderedDict()

    def guess(self, contract: Address | None, reserved: int) -> int:
        """Return what a call that reserves so much gas will probably take; all of it for an unknown contract."""
        known = None if contract is None else self._most.get(contract)
        return reserved if known is None else min(reserved, known)

    def learn(self, most: Mapping[Address, int]) -> None:
        """Take in the most that a block's calls took."""
        for contract, work in most.items():
            before = self._most.pop(contract, 0)
            self._most[contract] = max(work, before - (before >> _DECAY_SHIFT))
        while len(self._most) > MAX_CONTRACTS:
            self._most.popitem(last=False)
