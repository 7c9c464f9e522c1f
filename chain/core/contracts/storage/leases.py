"""Leases: an owner's claim on a blob, the spans it was paid for, and what comes back when it is released early.

A lease belongs to (blob, owner), so two payers never delete each other's bytes.
Invariant: spans of a lease do not overlap, and the last one ends where the lease does.
"""

from __future__ import annotations

from dataclasses import dataclass

from chain.core.abi.refusal import Refusal
from chain.core.contracts.storage.income import Span
from chain.core.contracts.storage.keys import lease_key
from chain.core.record_codec import pack, unpack
from chain.core.state import Overlay
from chain.core.types import Address

MAX_SPANS = 64
"""Payments of one lease that have not run out; more must wait for the first to end."""


@dataclass(slots=True, kw_only=True)
class Lease:
    """One owner's lease."""

    expiry_height: int
    """Its end, 0 where there is none."""
    spans: list[Span]
    """Paid parts that may still run, oldest first."""


def get_lease(state: Overlay, blob: bytes, owner: Address) -> Lease:
    """Return an owner's lease, one that ended at 0 where there is none."""
    value = state.get(lease_key(blob, owner))
    if value is None:
        return Lease(expiry_height=0, spans=[])
    expiry_height, spans = unpack(value)
    return Lease(
        expiry_height=expiry_height,
        spans=[Span(start=start, stop=stop, rate=rate, epoch=epoch) for start, stop, rate, epoch in spans],
    )


def save_lease(state: Overlay, blob: bytes, owner: Address, lease: Lease, height: int) -> None:
    """Write a lease without the spans that have run out."""
    spans = [
        (span.start, span.stop, span.rate, span.epoch) for span in lease.spans if span.stop > height and span.rate > 0
    ]
    if len(spans) > MAX_SPANS:
        raise Refusal("TooMany", MAX_SPANS, len(spans))
    state.set(lease_key(blob, owner), pack((lease.expiry_height, spans)))


def get_lease_expiries(state: Overlay, blob: bytes) -> list[tuple[Address, int]]:
    """Return all owners of leases of a blob and their ends, by address."""
    start, stop = lease_key(blob, Address(bytes(20))), lease_key(blob, Address(b"\xff" * 20)) + b"\0"
    return [(Address(key[-20:]), int(unpack(value)[0])) for key, value in state.iterate(start, stop)]
