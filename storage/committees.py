"""From the chain's view of a committee to da's: the one place where the two types meet."""

from __future__ import annotations

from collections.abc import Sequence

from contracts.bindings.types import StorageNode
from da.core.types import Committee, Epoch, Seat, ShardIndex


def make_committee(epoch: Epoch, seats: Sequence[StorageNode]) -> Committee:
    """Return da's committee of the chain's seats, in order."""
    return Committee(
        epoch=epoch,
        seats=tuple(
            Seat(index=ShardIndex(index), key=node.key, url=node.url.rstrip("/")) for index, node in enumerate(seats)
        ),
    )
