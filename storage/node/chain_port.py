"""What a node asks of the chain.  ``storage.node.rpc`` asks it over JSON-RPC.

Invariant: every failure is ChainUnreachable; a node never reads a failed question as an answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from contracts.bindings.types import Challenge, NodeAccount
from da.core.types import BlobId, Committee, Epoch, Height, ShardIndex
from storage.core.repair import BlobFacts


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

    def get_signed_heights(self, blobs: Sequence[BlobId]) -> tuple[int, ...]:
        """Return until when each blob's newest certified receipts bind, 0 where unknown; at most 256."""


class KeepingPort(Protocol):
    """What repair and audits ask beyond that; each raises ChainUnreachable when there is no answer."""

    def get_committee(self, epoch: Epoch) -> Committee:
        """Return any epoch's committee; one without seats where there was none."""

    def get_facts(self, blob: BlobId) -> BlobFacts:
        """Return what the chain says of a blob."""


class ChallengePort(Protocol):
    """How a node answers for itself, and makes others answer."""

    def get_challenges(self) -> tuple[Challenge, ...]:
        """Return the node's open challenges; raises ChainUnreachable."""

    def answer(self, challenge: Challenge, *, header: bytes, leaf: bytes, proof: bytes) -> None:
        """Send an answer and wait; raises ContractError, TransactionFailed, BindingError."""

    def accuse(self, blob: BlobId, shard: ShardIndex, leaf: int) -> Height:
        """Open a bonded challenge and wait; return its due height; raises as ``answer``, and ChainUnreachable."""

    def get_account(self) -> NodeAccount:
        """Return the node's bond and book; raises ChainUnreachable."""
