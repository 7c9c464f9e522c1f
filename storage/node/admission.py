"""Who may put what: the checks before a byte of a body is read, and the signature after all of them (SPEC.md 5).

Shared by everything that carries shards, so HTTP, batches and the bulk port refuse and sign alike. Lives in one
event loop.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager

from da.batch import BatchEntry
from da.core.blob import BlobHeader, check_has_folds, compute_shard_bytes, encode_header
from da.core.errors import FoldsMissing
from da.core.receipt import Receipt
from da.core.scheme import compute_tier_scheme
from da.core.types import Committee, Height, ShardIndex, Tier
from da.protocol import STATUS_OF_REFUSAL, BatchRequest, PutRequest, Refusal, encode_refusal
from storage.core.errors import (
    BadlyEncoded,
    BlobExpired,
    ChainNotKnown,
    DiskFailed,
    DiskFull,
    IndexFull,
    LengthRequired,
    MalformedRequest,
    NotMySeat,
    QuotaExceeded,
    RangeNotSatisfiable,
    RootMismatch,
    ShardTooLarge,
    ShelfUnavailable,
    StoreBusy,
    StoreRefusal,
    TierUnavailable,
    UnknownShard,
    UploadInterrupted,
    UploadTooSlow,
    WrongEpoch,
)
from storage.core.tiers import get_served_policy
from storage.node.metrics import Metrics
from storage.node.slots import Slots
from storage.node.sparse_log import SparseLog
from storage.node.status import NodeState
from storage.node.trace import Trace
from storage.node.upload import ShardOffer
from storage.node.watch import ChainView, check_seat

log = logging.getLogger(__name__)

_REFUSALS: Mapping[type[StoreRefusal], Refusal] = {
    MalformedRequest: Refusal.MALFORMED,
    LengthRequired: Refusal.MALFORMED,
    TierUnavailable: Refusal.MALFORMED,
    WrongEpoch: Refusal.NOT_MY_SEAT,
    NotMySeat: Refusal.NOT_MY_SEAT,
    ChainNotKnown: Refusal.BUSY,
    UnknownShard: Refusal.UNKNOWN_BLOB,
    BlobExpired: Refusal.EXPIRED,
    RangeNotSatisfiable: Refusal.MALFORMED,
    ShardTooLarge: Refusal.TOO_LARGE,
    RootMismatch: Refusal.ROOT_MISMATCH,
    BadlyEncoded: Refusal.BAD_ENCODING,
    StoreBusy: Refusal.BUSY,
    UploadInterrupted: Refusal.BUSY,
    UploadTooSlow: Refusal.BUSY,
    ShelfUnavailable: Refusal.BUSY,
    QuotaExceeded: Refusal.FULL,
    DiskFull: Refusal.FULL,
    DiskFailed: Refusal.FULL,
    IndexFull: Refusal.FULL,
}
"""What a client is told; da's client knows these few words."""

_STATUS: Mapping[type[StoreRefusal], int] = {LengthRequired: 411, RangeNotSatisfiable: 416}
"""Where HTTP has a more exact status than the API's."""


class Admission:
    """The checks and the pen of one node."""

    def __init__(
        self,
        state: NodeState,
        trace: Trace,
        metrics: Metrics,
        *,
        max_uploads: int,
        extra_codes: Sequence[tuple[int, int]] = (),
    ) -> None:
        """Admit what ``state``'s committees allow, and codes (k, n) of ``extra_codes`` beside the committee's own."""
        self._state = state
        self._trace = trace
        self._metrics = metrics
        self._extra_codes = frozenset(extra_codes)
        self._log = SparseLog(log)
        self._uploads = Slots("uploads under way", max_uploads)
        # Those over HTTP take one in the event loop, those of the bulk port in threads.

    async def admit(self, put: PutRequest) -> tuple[ChainView, ShardOffer]:
        """Check everything about a put but its bytes; returns what will be signed under.

        Raises: the refusals above.
        """
        return self._check_put(put, *await self._state.watch.get_committee(put.epoch))

    def admit_at_once(self, put: PutRequest) -> tuple[ChainView, ShardOffer] | None:
        """Do the same in any thread; None where the chain must be asked first."""
        found = self._state.watch.find_committee(put.epoch)
        return None if found is None else self._check_put(put, *found)

    async def admit_batch(
        self, batch: BatchRequest, entries: Sequence[BatchEntry]
    ) -> tuple[ChainView, list[ShardOffer]]:
        """Do the same for all blobs of a batch."""
        view, committee = await self._state.watch.get_committee(batch.epoch)
        self._check_terms(view, committee, batch.seat, batch.tier, batch.expiry)
        offers = []
        for entry in entries:
            self._check_header(entry.header, committee, batch.tier)
            put = PutRequest(
                blob=entry.blob,
                seat=batch.seat,
                epoch=batch.epoch,
                tier=batch.tier,
                expiry=batch.expiry,
                header=entry.header,
            )
            offers.append(_make_offer(put, entry.header, entry.encoded_header))
        return view, offers

    def take_slot(self, peer: str) -> AbstractContextManager[None]:
        """Count one upload under way; one address can't take all slots.

        Raises: StoreBusy.
        """
        return self._uploads.take(peer)

    def sign(self, put: PutRequest, view: ChainView) -> Receipt:
        """Sign for a shard that is durable now."""
        receipt = self._state.key.sign_receipt(put.terms(view.genesis_hash), put.seat)
        self._trace.record("signed", blob=put.blob.hex(), shard=put.seat, tier=put.tier.name.lower())
        self._metrics.puts.labels(put.tier.name.lower()).inc()
        return receipt

    def sign_batch(self, batch: BatchRequest, entries: Sequence[BatchEntry], view: ChainView) -> Receipt:
        """Sign once for all shards of a batch that is durable now."""
        terms = [batch.terms(view.genesis_hash, entry.blob, entry.header.size_bytes) for entry in entries]
        receipt = self._state.key.sign_batch(terms, batch.seat)
        self._trace.record("signed-batch", shards=len(entries), shard=batch.seat, tier=batch.tier.name.lower())
        self._metrics.puts.labels(batch.tier.name.lower()).inc(len(entries))
        return receipt

    def describe(self, what: str, error: StoreRefusal) -> tuple[int, bytes]:
        """Count and log a refusal, and return its status and JSON."""
        refusal = _REFUSALS[type(error)]
        self._metrics.refusals.labels(type(error).__name__).inc()
        self._state.engine.health.note(error)
        self._log.info(type(error).__name__, "%s refused: %s", what, error)
        return _STATUS.get(type(error), STATUS_OF_REFUSAL[refusal]), encode_refusal(refusal, str(error))

    def _check_put(self, put: PutRequest, view: ChainView, committee: Committee) -> tuple[ChainView, ShardOffer]:
        self._check_terms(view, committee, put.seat, put.tier, put.expiry)
        self._check_header(put.header, committee, put.tier)
        return view, _make_offer(put, put.header, encode_header(put.header))

    def _check_terms(self, view: ChainView, committee: Committee, seat: ShardIndex, tier: Tier, expiry: Height) -> None:
        policy = get_served_policy(tier)
        check_seat(committee, seat, self._state.key.public)
        if expiry <= view.height:
            raise BlobExpired(expiry=expiry, height=view.height)
        if expiry > view.height + policy.max_lifetime_blocks:
            raise MalformedRequest(
                f"expiry {expiry} is more than {policy.max_lifetime_blocks} blocks after height {view.height}, "
                f"the longest that tier {policy.tier.name.lower()} is kept"
            )

    def _check_header(self, header: BlobHeader, committee: Committee, tier: Tier) -> None:
        scheme = compute_tier_scheme(len(committee.seats), tier)
        got = (header.num_data, header.num_shards)
        if got != (scheme.num_data, scheme.num_shards) and not (
            got in self._extra_codes and got[1] == scheme.num_shards
        ):
            raise MalformedRequest(
                f"blob coded {got[0]} of {got[1]}, epoch {committee.epoch} with {len(committee.seats)} seats uses "
                f"{scheme.num_data} of {scheme.num_shards} in tier {tier.name.lower()}"
            )
        try:
            check_has_folds(header)
        except FoldsMissing as error:
            raise BadlyEncoded(str(error)) from error


def _make_offer(put: PutRequest, header: BlobHeader, header_bytes: bytes) -> ShardOffer:
    return ShardOffer(
        blob=put.blob,
        shard=put.seat,
        header=header,
        header_bytes=header_bytes,
        shard_bytes=compute_shard_bytes(header.size_bytes, header.num_data),
        tier=put.tier,
        epoch=put.epoch,
        expiry=put.expiry,
    )
