"""What a node asks of the chain.  ``storage.node.rpc`` asks it over JSON-RPC.

Invariant: every failure is ChainUnreachable; a node never reads a failed question as an answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from da.core.types import BlobId, Committee, Height


class ChainPort(Protocol):
    """The few questions; each raises ChainUnreachable when there is no answer."""

    def get_genesis_hash(self) -> bytes:
        """Return the 32 bytes that receipts are bound to."""

    def get_height(self) -> Height:
        """Return the newest block height."""

    def get_committees(self) -> tuple[Committee, ...]:
        """Return the current committee and then the one before, as far as there are any."""

    def get_release_heights(self, blobs: Sequence[BlobId]) -> tuple[int, ...]:
        """Return the release height of each blob, 0 where unknown; at most 256."""
