"""The node's index in LMDB: what is kept, and when to look at it again (SPEC.md 2).

Three tables: ``shards`` key -> record, ``due`` (height, key) -> nothing, ``counters`` name -> u64.  One write
transaction changes all three, so the counters are those of the records.  Every access is short and under one lock:
values are copied out, no reader outlives its call, so the file does not grow under a slow reader and the map can
be resized.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lmdb

from da.core.types import BlobId, Epoch, Height, ShardIndex, Tier
from storage.core.errors import IndexFull, MalformedRecord
from storage.core.expiry import HeldShard
from storage.core.quota import compute_charge_bytes
from storage.core.records import (
    ShardRecord,
    decode_due_key,
    decode_key,
    decode_record,
    encode_due_key,
    encode_key,
    encode_record,
)
from storage.node.environment import Environment

DEFAULT_MAP_BYTES = 1 << 30
"""Bytes of address space, not of disk: room for some four million shards."""

DELETE_HEADROOM_BYTES = 1 << 20
"""Bytes by which a full map grows so that a deletion, which copies pages first, always works."""

PAGE_RECORDS = 1024
"""Records copied out in one read transaction while all are walked through."""

_USED = b"used_bytes"
_SHARDS = b"num_shards"
_TIERS = tuple(b"tier_bytes_%d" % tier for tier in Tier)


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexTotals:
    """The counters."""

    used_bytes: int
    """Charged bytes of all records."""
    num_shards: int
    tier_bytes: tuple[int, ...] = ()
    """Charged bytes by tier."""


class Index:
    """The index of one home; thread-safe."""

    def __init__(self, path: Path, *, map_bytes: int = DEFAULT_MAP_BYTES) -> None:
        """Open or make the index; a map more than half full at the last run is doubled, a broken file set aside.

        Raises: DiskFull, DiskFailed.
        """
        self._lock = threading.Lock()
        data = path / "data.mdb"
        on_disk = data.stat().st_size if data.exists() else 0
        map_bytes = max(map_bytes, _grow(on_disk))
        self._env = Environment(path, map_bytes=map_bytes, tables=(b"shards", b"due", b"counters"))

    def close(self) -> None:
        """Close the environment."""
        with self._lock:
            self._env.close()

    def get_map_bytes(self) -> int:
        """Return the present size of the map."""
        return self._env.map_bytes

    def get_totals(self) -> IndexTotals:
        """Return the counters."""
        with self._lock, self._env.read() as txn:
            return IndexTotals(
                used_bytes=self._count(txn, _USED),
                num_shards=self._count(txn, _SHARDS),
                tier_bytes=tuple(self._count(txn, name) for name in _TIERS),
            )

    def get(self, blob: BlobId, shard: ShardIndex) -> ShardRecord | None:
        """Return a shard's record, None where there is none.

        Raises: MalformedRecord.
        """
        with self._lock, self._env.read() as txn:
            value = txn.get(encode_key(blob, shard), db=self._shards)
        return None if value is None else decode_record(bytes(value))

    def get_shards_of(self, blob: BlobId) -> list[ShardIndex]:
        """Return which shards of a blob are kept."""
        shards: list[ShardIndex] = []
        with self._lock, self._env.read() as txn, txn.cursor(db=self._shards) as cursor:
            found = cursor.set_range(encode_key(blob, ShardIndex(0)))
            while found and cursor.key()[:32] == blob:
                shards.append(decode_key(bytes(cursor.key()))[1])
                found = cursor.next()
        return shards

    def put(self, blob: BlobId, shard: ShardIndex, record: ShardRecord) -> None:
        """Add or replace a record, durably.

        Raises: IndexFull, DiskFull; the index is then as before.
        """
        self.put_many([(blob, shard, record)])

    def put_many(self, records: Sequence[tuple[BlobId, ShardIndex, ShardRecord]]) -> None:
        """Add or replace records in one transaction, all or none, durably.

        Raises: IndexFull, DiskFull; the index is then as before.
        """
        with self._lock:
            try:
                with self._env.write() as txn:
                    for blob, shard, record in records:
                        self._replace(txn, blob, shard, record)
            except lmdb.MapFullError as error:
                raise IndexFull(map_bytes=self._env.map_bytes) from error

    def delete(self, blob: BlobId, shard: ShardIndex) -> None:
        """Remove a record; one that is not there is no error.  Works on a full map.

        Raises: DiskFull; the record is still there then.
        """
        with self._lock:
            try:
                self._delete(blob, shard)
            except lmdb.MapFullError:
                self._grow()
                self._delete(blob, shard)

    def set_due(self, blob: BlobId, shard: ShardIndex, *, release: Height, due: Height) -> None:
        """Note what the chain said and when to look again; works on a full map, and on a deleted shard.

        Raises: DiskFull; it is due as before then.
        """
        with self._lock:
            try:
                self._set_due(blob, shard, release, due)
            except lmdb.MapFullError:
                self._grow()
                self._set_due(blob, shard, release, due)

    def get_due(self, height: Height, *, limit: int) -> list[HeldShard]:
        """Return shards whose due height has come, the longest due first.

        A due entry without a readable record is skipped: one bad record never stops the collector.
        """
        due: list[HeldShard] = []
        with self._lock, self._env.read() as txn, txn.cursor(db=self._due) as cursor:
            for key in cursor.iternext(keys=True, values=False):
                at, blob, shard = decode_due_key(bytes(key))
                if at > height or len(due) >= limit:
                    break
                value = txn.get(encode_key(blob, shard), db=self._shards)
                if value is None:
                    continue
                try:
                    record = decode_record(bytes(value))
                except MalformedRecord:
                    continue
                due.append(HeldShard(blob=blob, shard=shard, expiry=record.expiry))
        return due

    def iterate_keys(self) -> Iterator[tuple[BlobId, ShardIndex, ShardRecord | None]]:
        """Yield all shards by key, in pages; None for a record that can't be read."""
        start = b""
        while True:
            page: list[tuple[bytes, bytes]] = []
            with self._lock, self._env.read() as txn, txn.cursor(db=self._shards) as cursor:
                found = cursor.set_range(start) if start else cursor.first()
                while found and len(page) < PAGE_RECORDS:
                    page.append((bytes(cursor.key()), bytes(cursor.value())))
                    found = cursor.next()
            for key, value in page:
                blob, shard = decode_key(key)
                try:
                    record: ShardRecord | None = decode_record(value)
                except MalformedRecord:
                    record = None
                yield blob, shard, record
            if len(page) < PAGE_RECORDS:
                return
            start = page[-1][0] + b"\x00"

    def get_blobs_of_epoch(self, epoch: Epoch, *, after: bytes, limit: int) -> list[BlobId]:
        """Return blobs whose shards are kept for an epoch's committee, ascending, each once, behind ``after``."""
        blobs: list[BlobId] = []
        start = after + b"\xff\xff\xff" if after else b""
        with self._lock, self._env.read() as txn, txn.cursor(db=self._shards) as cursor:
            found = cursor.set_range(start) if start else cursor.first()
            while found and len(blobs) < limit:
                blob = decode_key(bytes(cursor.key()))[0]
                try:
                    record = decode_record(bytes(cursor.value()))
                except MalformedRecord:
                    record = None
                if record is not None and record.epoch == epoch and (not blobs or blobs[-1] != blob):
                    blobs.append(blob)
                found = cursor.next()
        return blobs

    def get_blobs_with(self, shard: ShardIndex) -> list[BlobId]:
        """Return blobs of which this very shard is kept."""
        return [blob for blob, index, _ in self.iterate_keys() if index == shard]

    def get_page(self, after: bytes, *, limit: int) -> list[HeldShard]:
        """Return kept shards in order of their keys, behind the key ``after``; unreadable records are left out."""
        page: list[HeldShard] = []
        with self._lock, self._env.read() as txn, txn.cursor(db=self._shards) as cursor:
            found = cursor.set_range(after + b"\0") if after else cursor.first()
            while found and len(page) < limit:
                blob, shard = decode_key(bytes(cursor.key()))
                with suppress(MalformedRecord):  # the reconciliation at the next start sees to it
                    page.append(HeldShard(blob=blob, shard=shard, expiry=decode_record(bytes(cursor.value())).expiry))
                found = cursor.next()
        return page

    def get_epochs(self) -> set[Epoch]:
        """Return the epochs for which something is kept."""
        return {record.epoch for _, _, record in self.iterate_keys() if record is not None}

    def rebuild_counters(self) -> bool:
        """Recount from the records; return whether the counters had been right."""
        used, num, tiers = 0, 0, [0 for _ in Tier]
        for _, _, record in self.iterate_keys():
            num += 1
            charge = 0 if record is None else compute_charge_bytes(record.shard_bytes)
            used += charge
            if record is not None:
                tiers[record.tier] += charge
        before = self.get_totals()
        if before == IndexTotals(used_bytes=used, num_shards=num, tier_bytes=tuple(tiers)):
            return True
        with self._lock, self._env.write() as txn:
            txn.put(_USED, used.to_bytes(8, "big"), db=self._counters)
            txn.put(_SHARDS, num.to_bytes(8, "big"), db=self._counters)
            for name, value in zip(_TIERS, tiers, strict=True):
                txn.put(name, value.to_bytes(8, "big"), db=self._counters)
        return False

    @property
    def _shards(self) -> Any:
        return self._env.tables[b"shards"]

    @property
    def _due(self) -> Any:
        return self._env.tables[b"due"]

    @property
    def _counters(self) -> Any:
        return self._env.tables[b"counters"]

    def _replace(self, txn: lmdb.Transaction, blob: BlobId, shard: ShardIndex, record: ShardRecord | None) -> None:
        key = encode_key(blob, shard)
        old = txn.get(key, db=self._shards)
        used, num = self._count(txn, _USED), self._count(txn, _SHARDS)
        if old is not None:
            num -= 1
            try:
                before = decode_record(bytes(old))
            except MalformedRecord:
                pass  # It was counted as nothing; its due entry is skipped when it comes up.
            else:
                used -= compute_charge_bytes(before.shard_bytes)
                self._add(txn, before.tier, -compute_charge_bytes(before.shard_bytes))
                txn.delete(encode_due_key(before.due, blob, shard), db=self._due)
            txn.delete(key, db=self._shards)
        if record is not None:
            num += 1
            used += compute_charge_bytes(record.shard_bytes)
            self._add(txn, record.tier, compute_charge_bytes(record.shard_bytes))
            txn.put(key, encode_record(record), db=self._shards)
            txn.put(encode_due_key(record.due, blob, shard), b"", db=self._due)
        txn.put(_USED, used.to_bytes(8, "big"), db=self._counters)
        txn.put(_SHARDS, num.to_bytes(8, "big"), db=self._counters)

    def _delete(self, blob: BlobId, shard: ShardIndex) -> None:
        with self._env.write() as txn:
            self._replace(txn, blob, shard, None)

    def _set_due(self, blob: BlobId, shard: ShardIndex, release: Height, due: Height) -> None:
        with self._env.write() as txn:
            value = txn.get(encode_key(blob, shard), db=self._shards)
            if value is None:
                return
            record = decode_record(bytes(value))
            changed = ShardRecord(
                tier=record.tier,
                epoch=record.epoch,
                expiry=record.expiry,
                release=release,
                due=due,
                shard_bytes=record.shard_bytes,
            )
            self._replace(txn, blob, shard, changed)

    def _grow(self) -> None:
        self._env.grow(self._env.map_bytes + DELETE_HEADROOM_BYTES)

    def _add(self, txn: lmdb.Transaction, tier: Tier, charge: int) -> None:
        value = max(0, self._count(txn, _TIERS[tier]) + charge)
        txn.put(_TIERS[tier], value.to_bytes(8, "big"), db=self._counters)

    def _count(self, txn: lmdb.Transaction, name: bytes) -> int:
        value = txn.get(name, db=self._counters)
        return 0 if value is None else int.from_bytes(value, "big")


def _grow(on_disk_bytes: int) -> int:
    page = 4096
    return (on_disk_bytes * 2 + page - 1) // page * page
