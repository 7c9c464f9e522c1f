"""Blobs, leases and pins: what stores must keep, and until when (DESIGN 5 and 6; DA.md, *Rules*).

A lease belongs to (blob, owner), so two payers never delete each other's bytes.  The round machine *pins* a
payload until a later checkpoint is certified, and a checkpoint until the next one is.  Invariant: a blob's
release height is the largest u64 while it is pinned, and otherwise never before the end of any lease.
"""

from __future__ import annotations

from dataclasses import dataclass

from chain.core.abi.refusal import Refusal
from chain.core.accounts import transfer
from chain.core.contracts.storage.bonds import note_signed
from chain.core.contracts.storage.certificates import StoredBlob
from chain.core.contracts.storage.income import (
    compute_span_rest,
    process_cut_span,
    process_fee,
    process_moved_span,
)
from chain.core.contracts.storage.keys import STORAGE, blob_key, due_blob_key
from chain.core.contracts.storage.leases import Lease, get_lease, get_lease_expiries, save_lease
from chain.core.contracts.storage.owners import process_owner_payment
from chain.core.contracts.storage.pricing import compute_fee, get_tier
from chain.core.record_codec import RecordCodec
from chain.core.state import Overlay
from chain.core.turn import Turn
from chain.core.types import Address, Amount

PINNED_HEIGHT = 2**64 - 1
"""Release height of a pinned blob."""


@dataclass(slots=True, kw_only=True)
class Blob:
    """A certified blob; owner, tier, epoch and expiry are those of the longest lease."""

    owner: Address
    """Payer of the longest lease."""
    size_bytes: int
    """Before coding."""
    tier: int
    """Promise."""
    epoch: int
    """Committee that keeps it."""
    certified_height: int
    """When it was first certified."""
    expiry_height: int
    """End of the longest lease."""
    num_pins: int
    """Reasons to keep it beyond its leases."""
    unpinned_height: int
    """When the last pin went, 0 if there never was one."""
    paid: int
    """Wei, all leases together; what came back from released ones is taken off."""
    signers: int
    """Bitmap of the seats of ``epoch`` that signed for their shard and have not lost it."""
    signed_height: int
    """Until when they signed to keep it; a renewal goes beyond."""


_BLOB = RecordCodec(Blob)


def get_blob(state: Overlay, blob: bytes) -> Blob | None:
    """Return a blob, None where unknown."""
    value = state.get(blob_key(blob))
    return _BLOB.decode(value) if value is not None else None


def get_lease_expiry(state: Overlay, blob: bytes, owner: Address) -> int:
    """Return the end of an owner's lease, 0 where there is none."""
    return get_lease(state, blob, owner).expiry_height


def compute_release_height(blob: Blob) -> int:
    """Return the first height at which stores may delete the blob."""
    return PINNED_HEIGHT if blob.num_pins else max(blob.expiry_height, blob.unpinned_height)


def compute_lease_fee(state: Overlay, stored: StoredBlob, owner: Address, height: int) -> Amount:
    """Return what a lease up to the certificate's expiry costs: only the blocks the owner has not paid yet.

    Where the tier is dearer than the one that the owner has paid for, all blocks that are left are bought anew, and
    what the lease would still have brought counts.
    """
    lease = get_lease(state, stored.blob, owner)
    paid_until = max(height, lease.expiry_height)
    tier = get_tier(state, stored.tier)
    if _is_dearer(state, stored, lease, height):
        stop = max(stored.expiry_height, paid_until)
        left = sum(compute_span_rest(span, height) for span in lease.spans)
        return Amount(max(0, compute_fee(tier, stored.size_bytes, stop - height) - left))
    if stored.expiry_height <= paid_until:
        return Amount(0)
    return compute_fee(tier, stored.size_bytes, stored.expiry_height - paid_until)


def process_lease(turn: Turn, stored: StoredBlob, owner: Address, fee: int) -> None:
    """Record a certified blob and the owner's lease of it; the fee has been paid."""
    state = turn.state
    lease = get_lease(state, stored.blob, owner)
    is_dearer = _is_dearer(state, stored, lease, int(turn.height))
    expiry = max(stored.expiry_height, lease.expiry_height)
    blob = get_blob(state, stored.blob)
    if blob is None:
        blob = Blob(
            owner=owner,
            size_bytes=stored.size_bytes,
            tier=stored.tier,
            epoch=stored.epoch,
            certified_height=turn.height,
            expiry_height=expiry,
            num_pins=0,
            unpinned_height=0,
            paid=0,
            signers=stored.signers,
            signed_height=stored.expiry_height,
        )
        state.set(due_blob_key(expiry, stored.blob), b"")
    elif expiry >= blob.expiry_height:
        is_same_epoch = blob.epoch == stored.epoch
        blob.owner, blob.tier, blob.epoch, blob.expiry_height = owner, stored.tier, stored.epoch, expiry
        blob.signers = stored.signers | (blob.signers if is_same_epoch else 0)
        blob.signed_height = max(stored.expiry_height, blob.signed_height)
    blob.paid += fee
    save_blob(state, stored.blob, blob)
    note_signed(state, stored.epoch, stored.expiry_height)
    if is_dearer:  # one span at the new price, from now on
        left = sum(process_cut_span(state, span, cut=int(turn.height), height=int(turn.height)) for span in lease.spans)
        lease.spans, lease.expiry_height = [], int(turn.height)
        _extend_lease(turn, stored.blob, owner, lease, expiry, stored.epoch, fee, left=left)
        turn.emit(STORAGE, "BlobCertified", stored.blob, owner, stored.size_bytes, stored.tier, expiry, fee)
        return
    if blob.epoch == stored.epoch:  # its own seats keep it from now on, and are paid from now on
        lease.spans = [
            process_moved_span(state, span, epoch=stored.epoch, height=int(turn.height)) for span in lease.spans
        ]
    _extend_lease(turn, stored.blob, owner, lease, expiry, stored.epoch, fee)
    turn.emit(STORAGE, "BlobCertified", stored.blob, owner, stored.size_bytes, stored.tier, expiry, fee)


def process_renewal(turn: Turn, blob_id: bytes, owner: Address, expiry_height: int) -> Amount:
    """Lengthen a lease that is still alive and return its fee."""
    # CHECKS
    state = turn.state
    blob = get_blob(state, blob_id)
    if blob is None:
        raise Refusal("UnknownBlob", blob_id)
    lease = get_lease(state, blob_id, owner)
    old_expiry = lease.expiry_height
    if old_expiry <= turn.height:  # none, or over: the bytes may be gone
        raise Refusal("NoLease", blob_id, owner)
    tier = get_tier(state, blob.tier)
    if expiry_height <= old_expiry:
        raise Refusal("LeaseTooShort", old_expiry + 1, expiry_height)
    if expiry_height > turn.height + tier.max_blocks:
        raise Refusal("LeaseTooLong", turn.height + tier.max_blocks, expiry_height)
    # EFFECTS
    fee = compute_fee(tier, blob.size_bytes, expiry_height - old_expiry)
    if expiry_height >= blob.expiry_height:
        blob.owner, blob.expiry_height = owner, expiry_height
    blob.paid += fee
    save_blob(state, blob_id, blob)
    _extend_lease(turn, blob_id, owner, lease, expiry_height, blob.epoch, fee)
    # EVENTS
    turn.emit(STORAGE, "LeaseRenewed", blob_id, owner, expiry_height, fee)
    return fee


def process_release(turn: Turn, blob_id: bytes, owner: Address) -> Amount:
    """End an owner's lease now and return what its unused blocks give back.

    The tier's shortest lease, counted from the blob's first certificate, is not given back.
    """
    # CHECKS
    state, height = turn.state, int(turn.height)
    blob = get_blob(state, blob_id)
    if blob is None:
        raise Refusal("UnknownBlob", blob_id)
    lease = get_lease(state, blob_id, owner)
    if lease.expiry_height <= height:
        raise Refusal("NoLease", blob_id, owner)
    if blob.num_pins:  # a run needs it: what keeps it must stay paid
        raise Refusal("BlobIsPinned", blob_id)
    # EFFECTS
    cut = max(height, blob.certified_height + get_tier(state, blob.tier).min_blocks)
    refund = sum(process_cut_span(state, span, cut=cut, height=height) for span in lease.spans)
    save_lease(state, blob_id, owner, Lease(expiry_height=height, spans=[]), height)
    longest_owner, longest_expiry = max(get_lease_expiries(state, blob_id), key=lambda item: (item[1], item[0]))
    blob.owner, blob.expiry_height = longest_owner, longest_expiry
    blob.paid -= refund
    save_blob(state, blob_id, blob)
    process_owner_payment(state, owner, refunded=refund)
    transfer(state, STORAGE, owner, refund)
    # EVENTS
    turn.emit(STORAGE, "LeaseReleased", blob_id, owner, refund)
    if longest_expiry <= height:
        turn.emit(STORAGE, "BlobReleased", blob_id, compute_release_height(blob))
    return Amount(refund)


def _is_dearer(state: Overlay, stored: StoredBlob, lease: Lease, height: int) -> bool:
    """Tell whether a certificate asks for a dearer tier than the one that a running lease was paid for."""
    blob = get_blob(state, stored.blob)
    if blob is None or lease.expiry_height <= height:
        return False
    new, old = get_tier(state, stored.tier), get_tier(state, blob.tier)
    return new.picowei_per_byte_block > old.picowei_per_byte_block


def _extend_lease(
    turn: Turn,
    blob_id: bytes,
    owner: Address,
    lease: Lease,
    expiry_height: int,
    epoch: int,
    fee: int,
    *,
    left: int = 0,
) -> None:
    """Lengthen a lease for ``fee``, and for ``left`` wei of its own that were taken out of former spans."""
    state, height = turn.state, int(turn.height)
    start = max(height, lease.expiry_height)
    if fee + left and expiry_height > start:
        span = process_fee(state, fee=fee + left, start=start, stop=expiry_height, epoch=epoch, height=height)
        lease.spans.append(span)
    lease.expiry_height = max(lease.expiry_height, expiry_height)
    save_lease(state, blob_id, owner, lease, height)
    process_owner_payment(state, owner, paid=fee)


def process_pin(turn: Turn, blob_id: bytes) -> None:
    """Keep a certified blob until ``process_unpin``; pins are counted."""
    blob = get_blob(turn.state, blob_id)
    assert blob is not None, "only certified blobs are pinned"
    blob.num_pins += 1
    save_blob(turn.state, blob_id, blob)


def process_unpin(turn: Turn, blob_id: bytes) -> None:
    """Take one pin away; with the last one the blob goes at the end of its leases."""
    blob = get_blob(turn.state, blob_id)
    assert blob is not None, "a pinned blob is known"
    assert blob.num_pins > 0, "a pin is taken away once"
    blob.num_pins -= 1
    if blob.num_pins == 0:
        blob.unpinned_height = turn.height
        turn.emit(STORAGE, "BlobReleased", blob_id, compute_release_height(blob))
    save_blob(turn.state, blob_id, blob)


def save_blob(state: Overlay, blob_id: bytes, blob: Blob) -> None:
    """Write a blob's record."""
    state.set(blob_key(blob_id), _BLOB.encode(blob))
