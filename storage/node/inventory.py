"""What a node tells other nodes about what it keeps, by epoch, so that they find what they lack (SPEC.md 11).

    GET /v1/inventory?epoch=E&after=HEX     32 bytes a blob, ascending, at most 4,096; fewer: that was the end

Invariant: decoding is total; an inventory is a hint and never a reason to delete.
"""

from __future__ import annotations

from itertools import pairwise

from da.core.hashing import HASH_BYTES
from da.core.types import BlobId
from storage.core.errors import MalformedRequest

INVENTORY_PATH = "/v1/inventory"
"""GET."""

PAGE_BLOBS = 4_096
"""Blobs in one answer: 128 KiB."""


def encode_inventory(blobs: list[BlobId]) -> bytes:
    """Return the ids one after the other."""
    return b"".join(blobs)


def decode_inventory(data: bytes) -> list[BlobId]:
    """Return the ids of an answer.

    Raises: MalformedRequest for another length, more than a page, or ids that do not ascend.
    """
    if len(data) % HASH_BYTES or len(data) > PAGE_BLOBS * HASH_BYTES:
        raise MalformedRequest(f"inventory of {len(data)} bytes")
    blobs = [BlobId(data[at : at + HASH_BYTES]) for at in range(0, len(data), HASH_BYTES)]
    if any(later <= earlier for earlier, later in pairwise(blobs)):
        raise MalformedRequest("inventory that does not ascend")
    return blobs
