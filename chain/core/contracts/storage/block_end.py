"""What the Storage contract does at the end of each block, in order."""

from __future__ import annotations

from chain.core.contracts.storage.challenges import process_challenges_block_end
from chain.core.contracts.storage.epochs import process_epoch_block_end
from chain.core.contracts.storage.income import process_income_block_end
from chain.core.contracts.storage.pruning import process_pruning_block_end
from chain.core.turn import Turn


def process_storage_block_end(turn: Turn) -> None:
    """Judge challenges that have run out, pay seats, start an epoch, forget old blobs."""
    process_challenges_block_end(turn)
    process_income_block_end(turn)
    process_epoch_block_end(turn)
    process_pruning_block_end(turn)
