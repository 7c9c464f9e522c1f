"""What each owner of leases has paid and got back, and which blobs it certified itself.

Blobs that a run buys are counted in the account and not listed: the run's own views name them.
"""

from __future__ import annotations

from dataclasses import dataclass

from chain.core.contracts.storage.keys import owned_blob_key, owner_account_key
from chain.core.record_codec import RecordCodec
from chain.core.state import Overlay
from chain.core.types import Address


@dataclass(slots=True, kw_only=True)
class OwnerAccount:
    """One owner's figures."""

    num_blobs: int
    """Blobs listed: those that the owner certified itself."""
    paid: int
    """Wei for leases."""
    refunded: int
    """Wei that came back from released leases."""


_ACCOUNT = RecordCodec(OwnerAccount)


def get_owner_account(state: Overlay, owner: Address) -> OwnerAccount:
    """Return an owner's account, an empty one where there is none."""
    value = state.get(owner_account_key(owner))
    return _ACCOUNT.decode(value) if value is not None else OwnerAccount(num_blobs=0, paid=0, refunded=0)


def process_owner_payment(state: Overlay, owner: Address, *, paid: int = 0, refunded: int = 0) -> None:
    """Add to an owner's figures."""
    if paid or refunded:
        account = get_owner_account(state, owner)
        account.paid += paid
        account.refunded += refunded
        _save(state, owner, account)


def process_owned_blob(state: Overlay, owner: Address, blob: bytes) -> None:
    """List a blob; call it once for each lease that is new."""
    account = get_owner_account(state, owner)
    state.set(owned_blob_key(owner, account.num_blobs), blob)
    account.num_blobs += 1
    _save(state, owner, account)


def get_owned_blobs(state: Overlay, owner: Address, start: int, count: int) -> list[bytes]:
    """Return the owner's blobs from number ``start`` on, oldest first."""
    stop = min(start + count, get_owner_account(state, owner).num_blobs)
    blobs = (state.get(owned_blob_key(owner, index)) for index in range(start, stop))
    return [blob for blob in blobs if blob is not None]


def _save(state: Overlay, owner: Address, account: OwnerAccount) -> None:
    state.set(owner_account_key(owner), _ACCOUNT.encode(account))
