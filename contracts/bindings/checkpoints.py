"""What can be said of a checkpoint from the chain's record of it."""

from __future__ import annotations

from contracts.bindings.types import Checkpoint, CheckpointState

NO_PART = bytes(32)
"""What the chain says of a part that nobody has stored."""


def is_complete(checkpoint: Checkpoint) -> bool:
    """Whether every part is stored and certified; a newer checkpoint may supersede one before all its parts are in."""
    is_over = checkpoint.state in (CheckpointState.CERTIFIED, CheckpointState.SUPERSEDED)
    return is_over and NO_PART not in checkpoint.blobs
