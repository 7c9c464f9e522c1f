"""Blobs in the chain's storage committee, behind ``PayloadPort``; verification on read is the client's default."""

from __future__ import annotations

from contracts.bindings.client import ChainClient
from da.blocking import BlobClient
from da.core.certificate import encode_certificate
from da.core.errors import BlobTooLarge, DataAvailabilityError, DisperseFailed, InconsistentBlob
from da.core.types import BlobId, Committee, Epoch, Height, Tier
from storage.committees import make_committee
from training.worker.errors import PayloadInconsistent, PayloadUnavailable

NO_BLOB = bytes(32)
"""Blob id in errors about bytes that have none yet."""


class CommitteeStores:
    """Puts and gets blobs where the chain says they belong."""

    def __init__(self, chain: ChainClient, blobs: BlobClient) -> None:
        """Use the chain for committees and the client for bytes."""
        self._chain = chain
        self._blobs = blobs

    def put(self, data: bytes, *, tier: int, blocks: int) -> bytes:
        """Disperse bytes to the current committee and return the encoded certificate."""
        epoch = Epoch(self._chain.storage.epoch())
        seats = self._chain.storage.committee(epoch) if epoch else ()
        if not seats:
            raise PayloadUnavailable(NO_BLOB, "the chain has no storage committee yet: start storage nodes")
        try:
            certificate = self._blobs.disperse(
                data,
                committee=make_committee(epoch, seats),
                genesis_hash=self._chain.genesis_hash(),
                tier=Tier(tier),
                expiry=Height(self._chain.height() + blocks),
            )
        except (DisperseFailed, BlobTooLarge) as error:
            raise PayloadUnavailable(NO_BLOB, str(error)) from error
        return encode_certificate(certificate)

    def get(self, blob: bytes, *, max_bytes: int) -> bytes:
        """Return a certified blob's bytes from the committee that its certificate names."""
        known = self._chain.storage.blob(blob)
        if known.epoch == 0:
            raise PayloadUnavailable(blob, "the chain knows no such blob")
        if known.size_bytes > max_bytes:
            raise PayloadUnavailable(blob, f"has {known.size_bytes} bytes, expected at most {max_bytes}")
        epoch = Epoch(known.epoch)
        committee: Committee = make_committee(epoch, self._chain.storage.committee(epoch))
        try:
            return bytes(self._blobs.retrieve(BlobId(blob), committee=committee, max_bytes=max_bytes).data)
        except InconsistentBlob as error:
            raise PayloadInconsistent(blob, str(error)) from error
        except DataAvailabilityError as error:
            raise PayloadUnavailable(blob, str(error)) from error

    def traffic(self) -> dict[str, int]:
        """Return bytes at the sockets: payload traffic with the stores and JSON-RPC with the chain, each way."""
        return {
            "payload_sent": self._blobs.bytes_sent,
            "payload_received": self._blobs.bytes_received,
            "rpc_sent": self._chain.bytes_sent,
            "rpc_received": self._chain.bytes_received,
        }
