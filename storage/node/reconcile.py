"""Bring disk and index to agree at start, and count what was found (SPEC.md 5).

Disk wins over index where it can prove itself: a shard that hashes to its header's root is indexed again.
Nothing is deleted because the index lacks it; what proves nothing goes to quarantine, for a person to look at.
"""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass, field

from da.core.blob import BlobHeader, compute_blob_id, decode_header
from da.core.errors import MalformedHeader
from da.core.merkle import RootBuilder
from da.core.types import BlobId, Height, ShardIndex, Tier
from storage.core.errors import DiskFull, MalformedRecord, ShelfUnavailable
from storage.core.expiry import compute_first_due
from storage.core.records import ShardRecord, ShardTerms
from storage.core.tiers import POLICIES, Durability
from storage.node.engine import StoreEngine

log = logging.getLogger(__name__)

READ_BYTES = 1 << 20
"""Bytes read at once while a shard is hashed again."""


@dataclass(slots=True, kw_only=True)
class Reconciliation:
    """What was found; all zero after an orderly stop."""

    staging_removed: int = 0
    """Half-written uploads of a process that died."""
    terms_removed: int = 0
    """Terms whose shard was never renamed, or was deleted."""
    reindexed: int = 0
    """Whole shards that the index did not have."""
    quarantined: int = 0
    """Files that are not what they say."""
    surplus_removed: int = 0
    """Second copies of shards that were changing their medium."""
    unreachable: int = 0
    """Shards that bucket or disk could not give; they are kept as they stand."""
    lost: int = 0
    """Records whose shard is not on disk."""
    are_counters_right: bool = True
    """Whether the counters were those of the records."""
    lost_blobs: list[str] = field(default_factory=list)
    """Hex ids of lost blobs, the first 20."""

    def get_findings(self) -> dict[str, int | bool | list[str]]:
        """Return what is worth a line in the log: everything that is not as after an orderly stop."""
        values = asdict(self)
        are_right = values.pop("are_counters_right")
        found = {name: value for name, value in values.items() if value}
        return found if are_right else {**found, "are_counters_right": False}


def reconcile(engine: StoreEngine, *, is_new_boot: bool = False) -> Reconciliation:
    """Make disk and index agree; called once, before the node serves.

    With ``is_new_boot``, shards of tiers that are not synced are hashed again: a power cut may have left files of
    the right length with other bytes, and a receipt must not be renewed on those.
    """
    found = Reconciliation()
    found.staging_removed = engine.disk.clear_staging()
    on_disk: set[tuple[BlobId, ShardIndex]] = set()
    for entry in engine.disk.iterate_found():
        record = _read_record(engine, entry.blob, entry.shard)
        try:
            body_bytes = engine.disk.get_body_bytes(entry.blob, entry.shard)
            if body_bytes is None:
                engine.disk.delete_terms(entry.blob, entry.shard)
                found.terms_removed += 1
                continue
            is_doubtful = is_new_boot and record is not None and POLICIES[record.tier].durability is Durability.WRITTEN
            is_indexed = record is not None and record.shard_bytes == body_bytes and entry.has_terms
            if is_indexed and not is_doubtful:
                on_disk.add((entry.blob, entry.shard))
                continue
            terms = _verify(engine, entry.blob, entry.shard)
        except (ShelfUnavailable, OSError) as error:  # a bad sector is no reason not to start: scrubbing sees to it
            log.error("shard %d of blob %s can't be looked at: %s", entry.shard, entry.blob.hex(), error)
            engine.health.note(error)
            found.unreachable += 1
            on_disk.add((entry.blob, entry.shard))
            continue
        if terms is not None and is_indexed:
            on_disk.add((entry.blob, entry.shard))
            continue
        if terms is None:
            log.error("shard %d of blob %s is not what it says: quarantined", entry.shard, entry.blob.hex())
            engine.disk.quarantine(entry.blob, entry.shard)
            engine.losses.add(entry.blob, entry.shard, "damaged")
            found.quarantined += 1
            continue
        engine.index.put(entry.blob, entry.shard, _make_record(terms))
        on_disk.add((entry.blob, entry.shard))
        found.reindexed += 1
    _reconcile_small(engine, on_disk, found, is_new_boot=is_new_boot)
    _remove_surplus(engine, found)
    missing = [(blob, shard) for blob, shard, _ in engine.index.iterate_keys() if (blob, shard) not in on_disk]
    for blob, shard in missing:
        log.error("shard %d of blob %s is in the index and not on disk: lost", shard, blob.hex())
        engine.index.delete(blob, shard)
        engine.losses.add(blob, shard, "missing")
        found.lost += 1
        if len(found.lost_blobs) < 20:
            found.lost_blobs.append(blob.hex())
    found.are_counters_right = engine.index.rebuild_counters()
    engine.refresh_quota()
    return found


def _reconcile_small(
    engine: StoreEngine, on_disk: set[tuple[BlobId, ShardIndex]], found: Reconciliation, *, is_new_boot: bool
) -> None:
    """Do the same for the database of small shards; one that proves nothing is deleted, it can't be looked at."""
    for blob, shard in list(engine.disk.small.iterate_keys()):
        if (blob, shard) in on_disk:
            continue
        is_indexed = _read_record(engine, blob, shard) is not None
        if is_indexed and not (is_new_boot and not engine.disk.small.is_synced(blob, shard)):
            on_disk.add((blob, shard))
            continue
        terms = _verify(engine, blob, shard)
        if terms is not None:
            if not is_indexed:
                engine.index.put(blob, shard, _make_record(terms))
                found.reindexed += 1
            on_disk.add((blob, shard))
            continue
        log.error("small shard %d of blob %s is not what it says: deleted", shard, blob.hex())
        engine.disk.small.delete(blob, shard)
        found.quarantined += 1


def _remove_surplus(engine: StoreEngine, found: Reconciliation) -> None:
    """Remove the copy that a shard's terms do not name, where the other one is there, as long as it should be.

    The terms decide: a process may have died between them and the index.
    """
    disk = engine.disk
    try:
        for blob, shard in list(disk.shelf.iterate_keys()):
            path = disk.get_body_path(blob, shard)
            if not path.exists():
                continue
            try:
                terms = disk.load_terms(blob, shard)
            except (FileNotFoundError, MalformedRecord):
                continue
            record = _read_record(engine, blob, shard)
            if record is None or record.tier is not terms.tier:
                engine.index.put(blob, shard, _make_record(terms))
                found.reindexed += 1
            if terms.tier is not Tier.COLD and path.stat().st_size == terms.shard_bytes:
                disk.drop_from_shelf(blob, shard)
                found.surplus_removed += 1
            elif terms.tier is Tier.COLD and disk.shelf.get_bytes(blob, shard) == terms.shard_bytes:
                disk.drop_file(blob, shard)
                found.surplus_removed += 1
    except (ShelfUnavailable, DiskFull) as error:
        log.warning("surplus copies on the shelf stay for now: %s", error)


def _read_record(engine: StoreEngine, blob: BlobId, shard: ShardIndex) -> ShardRecord | None:
    try:
        return engine.index.get(blob, shard)
    except MalformedRecord:
        return None


def _verify(engine: StoreEngine, blob: BlobId, shard: ShardIndex) -> ShardTerms | None:
    """Return the terms of a shard that hashes to its root under a header that hashes to its blob id."""
    try:
        terms = engine.disk.load_terms(blob, shard)
        header = decode_header(terms.header)
    except (FileNotFoundError, MalformedRecord, MalformedHeader) as error:
        log.error("terms of shard %d of blob %s: %s", shard, blob.hex(), error)
        return None
    if compute_blob_id(header) != blob or shard >= header.num_shards:
        return None
    try:
        return terms if _is_body_right(engine, blob, header, shard) else None
    except (FileNotFoundError, IsADirectoryError) as error:
        log.error("shard %d of blob %s is no file: %s", shard, blob.hex(), error)
        return None


def _is_body_right(engine: StoreEngine, blob: BlobId, header: BlobHeader, shard: ShardIndex) -> bool:
    builder, at = RootBuilder(leaf_bytes=header.leaf_bytes), 0
    reader = engine.disk.open_body(blob, shard)
    try:
        while chunk := reader.read(at, READ_BYTES):
            builder.update(chunk)
            at += len(chunk)
    finally:
        reader.close()
    return builder.finish() == header.shard_roots[shard]


def _make_record(terms: ShardTerms) -> ShardRecord:
    return ShardRecord(
        tier=terms.tier,
        epoch=terms.epoch,
        expiry=terms.expiry,
        release=Height(0),
        due=compute_first_due(terms.expiry),
        shard_bytes=terms.shard_bytes,
    )
