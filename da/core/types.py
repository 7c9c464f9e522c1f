"""The words that data availability shares with everything above it (DESIGN 5).

Invariant: a value of these types is already checked; sizes are checked where bytes enter.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NewType

BlobId = NewType("BlobId", bytes)
"""32 bytes: the tagged hash of a blob's header."""

ShardRoot = NewType("ShardRoot", bytes)
"""32 bytes: Merkle root over one shard's leaves."""

ShardIndex = NewType("ShardIndex", int)
"""Position of a shard in 0..n-1; equals the seat index that keeps it."""

Epoch = NewType("Epoch", int)
"""Number of a committee snapshot, from 1; 0 means there is none yet."""

Height = NewType("Height", int)
"""Block height."""


class Tier(IntEnum):
    """What a store promises about bytes; the numbers are the chain's."""

    TEMPORARY = 0
    HOT = 1
    COLD = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """Code and quorum of a committee of ``num_shards`` seats (DESIGN 5, *Committee*)."""

    num_data: int
    """k: shards that suffice to read, 1 <= k <= n."""
    num_shards: int
    """n: shards written, one a seat, 1 <= n <= 64."""
    num_signatures: int
    """s: receipts that certify, k <= s <= n."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """One storage node's place in a committee."""

    index: ShardIndex
    """Position in the committee, 0..n-1."""
    key: bytes
    """ed25519 public key, 32 bytes."""
    url: str
    """Where the node listens, e.g. ``http://127.0.0.1:9001``; no part of what is signed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Committee:
    """A snapshot of seats, taken by the chain."""

    epoch: Epoch
    """The snapshot's number."""
    seats: tuple[Seat, ...]
    """In seat order, ``seats[i].index == i``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiptTerms:
    """What a node's signature says: these bytes are durable, under these conditions."""

    genesis_hash: bytes
    """32 bytes: the chain."""
    epoch: Epoch
    """The committee the seats belong to."""
    blob: BlobId
    """Whose shard is kept."""
    size_bytes: int
    """Size of the blob before coding, 0..10^13."""
    tier: Tier
    """Promise."""
    expiry: Height
    """Kept at least until this height."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlace:
    """Where a blob stands in a batch that every seat signed once."""

    index: int
    """Position, 0 .. num_blobs - 1."""
    num_blobs: int
    """Blobs of the batch, 1 .. 4096."""
    siblings: tuple[bytes, ...]
    """Merkle path from the blob's terms to the top of the batch, from the leaf upwards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """Enough receipts of one committee for one blob."""

    terms: ReceiptTerms
    """What all of them signed (each with its own seat index)."""
    signatures: tuple[tuple[ShardIndex, bytes], ...]
    """(seat, 64-byte ed25519 signature), by ascending seat, each seat at most once."""
    batch: BatchPlace | None = None
    """Where the signatures are over a batch; None: they are over this blob alone."""
