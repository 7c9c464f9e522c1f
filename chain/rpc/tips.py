"""The tip that a wallet is told to offer: what others paid in the last blocks.

Blocks keep the order of arrival, so a tip buys no place; it goes to the proposer's operator.  The suggestion is the
median of what transactions of the last blocks paid, 0 where they paid none or there were none.
"""

from __future__ import annotations

from chain.store import Snapshot

NUM_BLOCKS = 20
"""As go-ethereum's oracle looks back."""
MAX_SAMPLES_A_BLOCK = 50
"""Transactions of one block that count, evenly drawn over its order."""


def suggest_tip(snapshot: Snapshot) -> int:
    """Return wei a gas; reads the last blocks."""
    paid: list[int] = []
    for height in range(max(snapshot.first_height, snapshot.height - NUM_BLOCKS + 1), snapshot.height + 1):
        block = snapshot.block(height)
        assert block is not None, "blocks from the first kept one on are there"
        if block.transactions:
            receipts = snapshot.receipts(height)
            step = -(-len(receipts) // MAX_SAMPLES_A_BLOCK)
            paid += [receipt.effective_gas_price - block.base_fee for receipt in receipts[::step]]
    return sorted(paid)[len(paid) // 2] if paid else 0
