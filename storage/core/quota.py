"""Quota arithmetic: may a shard of so many bytes come in? (SPEC.md 3)

Invariant: used + reserved <= capacity, always; every reservation ends as used or is given back.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from storage.core.errors import DiskFull, QuotaExceeded, StoreBusy

BLOCK_BYTES = 4096
"""Bytes; the allocation unit of the filesystems we run on."""

TERMS_FILE_BYTES = BLOCK_BYTES
"""Bytes charged for the small file of terms beside each shard: one block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """What a node has promised to hold, and what is on its way in."""

    capacity_bytes: int
    """What the operator gave, at least 1."""
    used_bytes: int
    """Charged for shards in the index."""
    reserved_bytes: int
    """Charged for uploads that are under way."""


def compute_charge_bytes(shard_bytes: int) -> int:
    """Return what a shard takes on disk: whole blocks, and one for its terms.

    >>> compute_charge_bytes(0), compute_charge_bytes(1), compute_charge_bytes(4097)
    (4096, 8192, 12288)
    """
    blocks = (shard_bytes + BLOCK_BYTES - 1) // BLOCK_BYTES
    return blocks * BLOCK_BYTES + TERMS_FILE_BYTES


def reserve(quota: Quota, shard_bytes: int, *, free_bytes: int, floor_bytes: int) -> Quota:
    """Return the quota with room set aside for a shard.

    ``free_bytes`` is what the filesystem has free; ``floor_bytes`` of it stay free.
    Reservations not yet written are counted against it in full, which errs on the safe side.

    Raises: QuotaExceeded when kept shards leave no room, StoreBusy when only uploads under way are in
    the way, DiskFull when the filesystem is.
    """
    return reserve_charge(quota, compute_charge_bytes(shard_bytes), free_bytes=free_bytes, floor_bytes=floor_bytes)


def reserve_charge(quota: Quota, charge: int, *, free_bytes: int, floor_bytes: int) -> Quota:
    """Return the quota with ``charge`` bytes set aside, as for one shard; a batch is charged at once.

    Raises: as ``reserve``.
    """
    if quota.used_bytes + charge > quota.capacity_bytes:
        raise QuotaExceeded(asked=charge, used=quota.used_bytes, capacity=quota.capacity_bytes)
    total = quota.used_bytes + quota.reserved_bytes + charge
    if total > quota.capacity_bytes:
        raise StoreBusy(what="bytes used and reserved", got=total, maximum=quota.capacity_bytes)
    if quota.reserved_bytes + charge + floor_bytes > free_bytes:
        raise DiskFull(asked=charge, free=free_bytes, floor=floor_bytes)
    return replace(quota, reserved_bytes=quota.reserved_bytes + charge)


def reserve_repair(quota: Quota, shard_bytes: int, *, free_bytes: int) -> Quota:
    """Return the quota with room for a shard that was promised already: only a full filesystem is in its way.

    Raises: DiskFull.
    """
    charge = compute_charge_bytes(shard_bytes)
    if quota.reserved_bytes + charge > free_bytes:
        raise DiskFull(asked=charge, free=free_bytes, floor=0)
    return replace(quota, reserved_bytes=quota.reserved_bytes + charge)


def release(quota: Quota, shard_bytes: int) -> Quota:
    """Return the quota after a reservation ended, either way."""
    return release_charge(quota, compute_charge_bytes(shard_bytes))


def release_charge(quota: Quota, charge: int) -> Quota:
    """Return the quota after ``charge`` bytes that were set aside are so no more."""
    reserved = quota.reserved_bytes - charge
    assert reserved >= 0, "a reservation was given back twice"
    return replace(quota, reserved_bytes=reserved)


def with_used(quota: Quota, used_bytes: int) -> Quota:
    """Return the quota with the index's own count of used bytes."""
    return replace(quota, used_bytes=used_bytes)
