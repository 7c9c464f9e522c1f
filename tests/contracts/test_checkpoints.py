"""A checkpoint that a newer one overtook is not taken for a whole one."""

from __future__ import annotations

import pytest

from contracts.bindings.checkpoints import is_complete
from contracts.bindings.types import Checkpoint, CheckpointState

PART = b"\x01" * 32
NO_PART = bytes(32)


@pytest.mark.parametrize(
    ("state", "blobs", "expected"),
    [
        (CheckpointState.CERTIFIED, (PART, PART), True),
        (CheckpointState.SUPERSEDED, (PART, PART), True),
        (CheckpointState.SUPERSEDED, (PART, NO_PART), False),
        (CheckpointState.OPEN, (PART, PART), False),
        (CheckpointState.NONE, (), False),
    ],
)
def test_complete_only_with_all_parts(state: CheckpointState, blobs: tuple[bytes, ...], expected: bool) -> None:
    checkpoint = Checkpoint(version=8, root=PART, state=state, height=40, blobs=blobs)
    assert is_complete(checkpoint) is expected
