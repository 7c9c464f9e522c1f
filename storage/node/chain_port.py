"""What a node asks of the chain, and the same over JSON-RPC.

Every failure comes out as ChainUnreachable: a node never reads a failed question as an answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from contracts.bindings.client import ChainClient
from contracts.bindings.errors import BindingError
from da.core.types import BlobId, Committee, Epoch, Height
from storage.committees import make_committee
from storage.core.errors import ChainUnreachable

T = TypeVar("T")


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


class RpcChain:
    """ChainPort over contracts.bindings; called from one thread at a time."""

    def __init__(self, client: ChainClient) -> None:
        """Ask through ``client``."""
        self._client = client
        self._cached: dict[Epoch, Committee] = {}

    def get_genesis_hash(self) -> bytes:
        """Return the 32 bytes that receipts are bound to."""
        return ask(self._client.genesis_hash)

    def get_height(self) -> Height:
        """Return the newest block height."""
        return Height(ask(self._client.height))

    def get_committees(self) -> tuple[Committee, ...]:
        """Return the current committee and then the one before; snapshots never change, so they are kept."""
        epoch = ask(self._client.storage.epoch)
        wanted = [Epoch(number) for number in (epoch, epoch - 1) if number >= 1]
        found = {number: self._cached.get(number) or self._fetch(number) for number in wanted}
        self._cached = {number: committee for number, committee in found.items() if committee.seats}
        return tuple(found.values())

    def get_release_heights(self, blobs: Sequence[BlobId]) -> tuple[int, ...]:
        """Return the release height of each blob, 0 where unknown."""
        heights = ask(lambda: self._client.storage.release_heights(tuple(blobs)))
        if len(heights) != len(blobs):
            raise ChainUnreachable(f"releaseHeights answered {len(heights)} heights for {len(blobs)} blobs")
        return heights

    def _fetch(self, epoch: Epoch) -> Committee:
        return make_committee(epoch, ask(lambda: self._client.storage.committee(epoch)))


def ask(question: Callable[[], T]) -> T:
    """Return the answer.

    Raises: ChainUnreachable for everything that is none.
    """
    try:
        return question()
    except BindingError as error:
        raise ChainUnreachable(f"the chain gave no answer: {error}") from error
