"""The store engine: admit, receive, make durable, index, delete (DESIGN 6, SPEC.md 3 and 5).

    admit (quota, disk) -> receive into staging, hashing -> root check -> fdatasync (hot) -> rename -> index commit

Invariant: what the index holds lies on disk under its root, and ``used`` counts exactly that; an upload that
ends in any other way leaves nothing and gives its room back.  Synchronous and thread-safe: the server calls it
in threads.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from da.core.types import BlobId, Height, ShardIndex, Tier
from storage.core.errors import (
    DiskFailed,
    DiskFull,
    MalformedRecord,
    ShelfUnavailable,
    UnknownShard,
)
from storage.core.expiry import HeldShard, Sweep, compute_first_due
from storage.core.quota import (
    Quota,
    compute_charge_bytes,
    release_charge,
    reserve,
    reserve_charge,
    reserve_repair,
    with_used,
)
from storage.core.records import ShardRecord, ShardTerms
from storage.core.tiers import POLICIES, Durability, is_stronger
from storage.node.body import ShardReader
from storage.node.disk import Disk
from storage.node.health import DiskHealth
from storage.node.index import DEFAULT_MAP_BYTES, Index
from storage.node.losses import Losses
from storage.node.promises import Promises
from storage.node.ram import RamFolder
from storage.node.room import refuse_when_full
from storage.node.shelf import Shelf
from storage.node.small import SmallShard
from storage.node.trace import MemoryTrace, Trace
from storage.node.upload import Fault, ShardOffer, Upload, check_shard, no_fault

log = logging.getLogger(__name__)

DEFAULT_FLOOR_BYTES = 64 * 1024 * 1024
"""Bytes that stay free on the filesystem: room for the index, logs and deletions."""

AHEAD_BYTES = 16 << 20
"""Set aside for an upload beyond what has come of it; 64 uploads that send nothing hold 1 GiB."""


class StoreEngine:
    """One home directory: its disk, its index and its quota."""

    def __init__(
        self,
        home: Path,
        *,
        capacity_bytes: int,
        floor_bytes: int = DEFAULT_FLOOR_BYTES,
        map_bytes: int = DEFAULT_MAP_BYTES,
        trace: Trace | None = None,
        fault: Fault = no_fault,
        shelf: Shelf | None = None,
        ram: RamFolder | None = None,
        certify_seconds: float = 0.0,
    ) -> None:
        """Open ``home``; call ``storage.node.reconcile.reconcile`` before serving.

        For ``certify_seconds`` after a promise no lease that was given back before ends it.
        """
        self.disk = Disk(home, shelf=shelf, ram=ram)
        self.losses = Losses()
        self.health = DiskHealth()
        self.promises = Promises(certify_seconds)
        self.index = Index(home / "index", map_bytes=map_bytes)
        self.trace: Trace = trace if trace is not None else MemoryTrace()
        self._fault = fault
        self._floor_bytes = floor_bytes
        self._lock = threading.Lock()
        """Over the quota."""
        self._publish_lock = threading.Lock()
        """Over names and records together: publishing, renewing and deleting exclude each other."""
        self._quota = Quota(
            capacity_bytes=capacity_bytes, used_bytes=self.index.get_totals().used_bytes, reserved_bytes=0
        )

    def close(self) -> None:
        """Close the index and the disk."""
        self.index.close()
        self.disk.close()

    def get_quota(self) -> Quota:
        """Return capacity, used and reserved bytes."""
        with self._lock:
            return self._quota

    def refresh_quota(self) -> None:
        """Take the used bytes from the index again."""
        used = self.index.get_totals().used_bytes
        with self._lock:
            self._quota = with_used(self._quota, used)

    @contextmanager
    def upload(self, offer: ShardOffer, *, is_repair: bool = False) -> Iterator[Upload]:
        """Reserve room and give a staging file; leaving the block gives back what was not committed.

        There must be room for all of it, but set aside is only what has come and AHEAD_BYTES more: to announce
        much and send little keeps nobody else out.  A repair brings back what was promised before: the capacity
        is not in its way.

        Raises: QuotaExceeded, StoreBusy, DiskFull before anything is read.
        """
        free = self.disk.get_free_bytes()
        charge = compute_charge_bytes(offer.shard_bytes)
        held = charge if is_repair else min(charge, compute_charge_bytes(AHEAD_BYTES))
        with self._lock:
            if is_repair:
                self._quota = reserve_repair(self._quota, offer.shard_bytes, free_bytes=free)
            else:
                reserve(self._quota, offer.shard_bytes, free_bytes=free, floor_bytes=self._floor_bytes)
                self._quota = reserve_charge(self._quota, held, free_bytes=free, floor_bytes=self._floor_bytes)

        def hold(num_bytes: int) -> None:
            nonlocal held
            if held == charge or compute_charge_bytes(num_bytes) + AHEAD_BYTES // 2 <= held:
                return
            wanted = min(charge, compute_charge_bytes(num_bytes + AHEAD_BYTES))
            free = self.disk.get_free_bytes() + num_bytes
            with self._lock:
                self._quota = reserve_charge(self._quota, wanted - held, free_bytes=free, floor_bytes=self._floor_bytes)
            held = wanted

        self._record("admitted", offer)
        try:
            staged = (
                self.disk.create_staging(synced_bytes=offer.shard_bytes)
                if _is_synced(offer.tier)
                else self.disk.create_temporary_staging(offer.shard_bytes)
            )
            try:
                yield Upload(offer, staged, self._fault, hold)
            finally:
                staged.discard()
        finally:
            with self._lock:
                self._quota = release_charge(self._quota, held)

    def commit(self, upload: Upload) -> None:
        """Check the bytes, make them as durable as the tier promises, name and index them.

        When this returns, a receipt may be signed.

        Raises: UploadInterrupted, RootMismatch, BadlyEncoded, DiskFull, IndexFull; nothing is kept then.
        """
        offer = upload.offer
        upload.check()
        self._record("received", offer)
        is_synced = _is_synced(offer.tier)
        if is_synced:
            upload.staged.sync()
            self._record("synced", offer)
        self._fault("after-sync")
        with self._publish_lock, refuse_when_full(offer.shard_bytes):
            old = self.index.get(offer.blob, offer.shard)
            terms, record = _merge(offer, old)
            if _is_synced(terms.tier) and not is_synced:  # a hot shard that was lost comes back with a temporary one
                upload.staged.sync()
            is_indexed = False
            try:
                self.disk.publish(upload.staged, offer.blob, terms, is_synced=_is_synced(terms.tier))
                self._record("renamed", offer)
                self._fault("after-rename")
                self.index.put(offer.blob, offer.shard, record)
                is_indexed = True
            finally:
                if not is_indexed and old is None:
                    self.disk.delete(offer.blob, offer.shard)
            self.promises.note([(offer.blob, offer.shard)])
            self._record("indexed", offer)
        self.refresh_quota()
        self._fault("after-index")

    def renew(self, offer: ShardOffer) -> bool:
        """Promise a shard that is already kept under the offer's terms; False when it is not kept whole.

        Raises: DiskFull, IndexFull; the old promise stands then.
        """
        with self._publish_lock, refuse_when_full():
            old = self.index.get(offer.blob, offer.shard)
            if old is None or self.disk.get_body_bytes(offer.blob, offer.shard) != offer.shard_bytes:
                return False
            self._renew(offer, old)
            self.promises.note([(offer.blob, offer.shard)])
        return True

    def _renew(self, offer: ShardOffer, old: ShardRecord) -> None:
        terms, record = _merge(offer, old)
        is_synced = _is_synced(terms.tier)
        goes_cold = terms.tier is Tier.COLD and old.tier is not Tier.COLD
        goes_hot = terms.tier is not Tier.COLD and old.tier is Tier.COLD
        if goes_cold:
            self.disk.move_to_shelf(offer.blob, offer.shard)
        elif goes_hot:
            self.disk.move_from_shelf(offer.blob, offer.shard)
        elif is_synced and not _is_synced(old.tier):
            self.disk.sync_body(offer.blob, offer.shard)
            self._record("synced", offer)
        is_promised = False
        try:
            if record != old:
                self.disk.save_terms(offer.blob, terms, is_synced=is_synced)
                is_promised = True
                self.index.put(offer.blob, offer.shard, record)
                self._record("indexed", offer)
        finally:
            if goes_cold and not is_promised:  # a copy that no terms name would stay for ever
                self._drop_from_shelf(offer.blob, offer.shard)
        if goes_cold:
            self.disk.drop_file(offer.blob, offer.shard)
        elif goes_hot:
            self._drop_from_shelf(offer.blob, offer.shard)

    def _drop_from_shelf(self, blob: BlobId, shard: ShardIndex) -> None:
        """Remove a copy that nothing names; where that fails now, the next start finds it."""
        try:
            with refuse_when_full():
                self.disk.drop_from_shelf(blob, shard)
        except (DiskFull, DiskFailed, ShelfUnavailable, OSError) as error:
            log.warning("a surplus copy of shard %d of blob %s stays for now: %s", shard, blob.hex(), error)

    def get_record(self, blob: BlobId, shard: ShardIndex) -> ShardRecord:
        """Return the record of a shard whose bytes are there.

        Raises: UnknownShard, also when the index has it and the disk has lost it.
        """
        record = self.index.get(blob, shard)
        if record is None:
            raise UnknownShard(blob=blob, shard=shard)
        if self.disk.get_body_bytes(blob, shard) != record.shard_bytes:
            if self.losses.add(blob, shard, "missing"):
                log.error("shard %d of blob %s is in the index and not on disk: lost", shard, blob.hex())
            raise UnknownShard(blob=blob, shard=shard)
        return record

    def open_body(self, blob: BlobId, shard: ShardIndex) -> ShardReader:
        """Return a reader of a kept shard.

        Raises: UnknownShard.
        """
        try:
            return self.disk.open_body(blob, shard)
        except FileNotFoundError as error:
            raise UnknownShard(blob=blob, shard=shard) from error

    def keep_batch(self, offers: Sequence[ShardOffer], bodies: Sequence[memoryview]) -> None:
        """Check small shards and keep them all, in one transaction each of bytes and index, or none.

        When this returns, one receipt for all of them may be signed. All have the same tier.

        Raises: RootMismatch, BadlyEncoded, QuotaExceeded, StoreBusy, DiskFull, IndexFull; nothing new is kept then.
        """
        for offer, body in zip(offers, bodies, strict=True):
            check_shard(offer, body)
        charge = sum(compute_charge_bytes(offer.shard_bytes) for offer in offers)
        free, is_synced = self.disk.get_free_bytes(), _is_synced(offers[0].tier)
        with self._lock:
            self._quota = reserve_charge(self._quota, charge, free_bytes=free, floor_bytes=self._floor_bytes)
        try:
            with self._publish_lock, refuse_when_full(charge):
                fresh = []
                for offer, body in zip(offers, bodies, strict=True):
                    old = self.index.get(offer.blob, offer.shard)
                    if old is not None and self.disk.get_body_bytes(offer.blob, offer.shard) == offer.shard_bytes:
                        self._renew(offer, old)
                    else:
                        fresh.append((offer, *_merge(offer, old), body))
                small = [SmallShard(blob=offer.blob, terms=terms, body=body) for offer, terms, _, body in fresh]
                is_indexed = False
                try:
                    self.disk.small.put_many(small, is_synced=is_synced)
                    self._fault("after-rename")
                    self.index.put_many([(offer.blob, offer.shard, record) for offer, _, record, _ in fresh])
                    is_indexed = True
                    self.promises.note([(offer.blob, offer.shard) for offer in offers])
                finally:
                    if not is_indexed:
                        for shard in small:
                            self.disk.small.delete(shard.blob, shard.terms.shard)
        finally:
            with self._lock:
                self._quota = release_charge(self._quota, charge)
        self.refresh_quota()
        self.trace.record("batch", shards=len(offers), tier=offers[0].tier.name.lower())
        self._fault("after-index")

    def quarantine(self, blob: BlobId, shard: ShardIndex) -> None:
        """Take a damaged shard out of service; its record stays, so that its room does, and repair replaces it."""
        with self._publish_lock:
            self.disk.quarantine(blob, shard)
        self.losses.add(blob, shard, "damaged")

    def get_header(self, blob: BlobId) -> bytes:
        """Return the encoded header of a blob of which some shard is kept.

        Raises: UnknownShard.
        """
        for shard in self.index.get_shards_of(blob):
            try:
                return self.disk.load_terms(blob, shard).header
            except (FileNotFoundError, MalformedRecord) as error:
                log.error("terms of shard %d of blob %s can't be read: %s", shard, blob.hex(), error)
                self.losses.add(blob, shard, "damaged")
        raise UnknownShard(blob=blob, shard=None)

    def apply_sweep(self, sweep: Sweep, *, height: Height, again: Height) -> int:
        """Do what was planned; return how many shards went.

        A shard that was promised anew since the plan was made stays.  A shard that can't be deleted is logged and
        looked at again at height ``again``; the others go.
        """
        count = 0
        for held in sweep.delete:
            try:
                with refuse_when_full():
                    count += self._delete_expired(held, height)
            except (OSError, ShelfUnavailable, DiskFull, DiskFailed) as error:
                self.health.note(error)
                log.error("shard %d of blob %s was not deleted: %s", held.shard, held.blob.hex(), error)
                self._look_again(held, Height(0), again)
        for held, said, due in sweep.keep:
            self._look_again(held, said, due)
        self.refresh_quota()
        return count

    def _look_again(self, held: HeldShard, release: Height, due: Height) -> None:
        try:
            self.index.set_due(held.blob, held.shard, release=release, due=due)
        except (DiskFull, DiskFailed) as error:  # it stays due, so the next sweep looks at it
            self.health.note(error)
            log.error("shard %d of blob %s stays due: %s", held.shard, held.blob.hex(), error)

    def _delete_expired(self, held: HeldShard, height: Height) -> int:
        with self._publish_lock:
            record = self.index.get(held.blob, held.shard)
            if record is None or record.expiry != held.expiry:
                return 0
            if record.expiry > height and self.promises.is_recent((held.blob, held.shard)):
                return 0  # its lease was given back, and it was signed for again since
            self.disk.delete(held.blob, held.shard)
            self.index.delete(held.blob, held.shard)
        self.trace.record("deleted", blob=held.blob.hex(), shard=held.shard)
        return 1

    def _record(self, event: str, offer: ShardOffer) -> None:
        self.trace.record(event, blob=offer.blob.hex(), shard=offer.shard, tier=offer.tier.name.lower())


def _is_synced(tier: Tier) -> bool:
    return POLICIES[tier].durability is Durability.SYNCED


def _merge(offer: ShardOffer, old: ShardRecord | None) -> tuple[ShardTerms, ShardRecord]:
    """Return terms and record that keep every promise made so far: the stronger tier, the later expiry."""
    tier, epoch, expiry, release_height = offer.tier, offer.epoch, offer.expiry, Height(0)
    if old is not None:
        tier = old.tier if is_stronger(old.tier, tier) else tier
        epoch = max(old.epoch, epoch)
        expiry = max(old.expiry, expiry)
        release_height = old.release
    terms = ShardTerms(
        shard=offer.shard,
        tier=tier,
        epoch=epoch,
        expiry=expiry,
        shard_bytes=offer.shard_bytes,
        header=offer.header_bytes,
    )
    record = ShardRecord(
        tier=tier,
        epoch=epoch,
        expiry=expiry,
        release=release_height,
        due=compute_first_due(expiry),
        shard_bytes=offer.shard_bytes,
    )
    return terms, record
