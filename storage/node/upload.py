"""One shard on its way in: what is offered, the bytes as they come, and the checks before anything is kept (SPEC.md 5).

Invariant: what passes hashes to its root in the header and is on the code, so a receipt may be signed for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from da.core.blob import BlobHeader
from da.core.errors import BadEncoding
from da.core.merkle import RootBuilder, compute_root
from da.core.types import BlobId, Epoch, Height, ShardIndex, Tier
from da.folding import EncodingCheck
from storage.core.errors import BadlyEncoded, RootMismatch, UploadInterrupted
from storage.core.records import ShardTerms
from storage.node.disk import StagingFile

Fault = Callable[[str], None]
"""Called with the name of each point of a PUT; a test ends the process there."""


def no_fault(point: str) -> None:
    """Do nothing: the fault of a node in earnest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardOffer:
    """A shard that somebody wants kept; everything about it but its bytes is already checked."""

    blob: BlobId
    shard: ShardIndex
    header: BlobHeader
    header_bytes: bytes
    """The header as it was encoded; its hash is the blob id."""
    shard_bytes: int
    """As the header's layout says."""
    tier: Tier
    epoch: Epoch
    expiry: Height

    def make_terms(self) -> ShardTerms:
        """Return what is written beside the shard."""
        return ShardTerms(
            shard=self.shard,
            tier=self.tier,
            epoch=self.epoch,
            expiry=self.expiry,
            shard_bytes=self.shard_bytes,
            header=self.header_bytes,
        )


class Upload:
    """One shard on its way in."""

    def __init__(self, offer: ShardOffer, staged: StagingFile, fault: Fault, hold: Callable[[int], None]) -> None:
        """Receive ``offer`` into ``staged``; ``hold`` sets room aside for so many bytes of it."""
        self.offer = offer
        self.staged = staged
        self._hold = hold
        self._fault = fault
        self._root = RootBuilder(leaf_bytes=offer.header.leaf_bytes)
        self._encoding = EncodingCheck(offer.header, offer.shard)

    def write(self, chunk: bytes | bytearray | memoryview) -> None:
        """Take the next bytes of the body.

        Raises: UploadInterrupted when there are more than were announced; DiskFull, and StoreBusy or QuotaExceeded
        when others were faster.
        """
        got = self.staged.num_bytes + len(chunk)
        if got > self.offer.shard_bytes:
            raise UploadInterrupted(got=got, expected=self.offer.shard_bytes)
        self._hold(got)
        self.staged.write(chunk)
        self._root.update(chunk)
        self._encoding.update(chunk)
        self._fault("during-body")

    def check(self) -> None:
        """Check that the body is complete, hashes to the header's root and is on the code.

        Raises: UploadInterrupted, RootMismatch, BadlyEncoded.
        """
        if self.staged.num_bytes != self.offer.shard_bytes:
            raise UploadInterrupted(got=self.staged.num_bytes, expected=self.offer.shard_bytes)
        expected = self.offer.header.shard_roots[self.offer.shard]
        got = self._root.finish()
        if got != expected:
            raise RootMismatch(shard=self.offer.shard, expected=expected, got=got)
        try:
            self._encoding.finish()
        except BadEncoding as error:
            raise BadlyEncoded(str(error)) from error


def check_shard(offer: ShardOffer, body: memoryview) -> None:
    """Check a whole shard in memory.

    Raises: UploadInterrupted, RootMismatch, BadlyEncoded.
    """
    if len(body) != offer.shard_bytes:
        raise UploadInterrupted(got=len(body), expected=offer.shard_bytes)
    expected = offer.header.shard_roots[offer.shard]
    got = compute_root(body, leaf_bytes=offer.header.leaf_bytes)
    if got != expected:
        raise RootMismatch(shard=offer.shard, expected=expected, got=got)
    encoding = EncodingCheck(offer.header, offer.shard)
    encoding.update(body)
    try:
        encoding.finish()
    except BadEncoding as error:
        raise BadlyEncoded(str(error)) from error
