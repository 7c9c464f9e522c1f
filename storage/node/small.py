"""Small shards in LMDB: a batch costs one transaction, not thousands of files (SPEC.md 2).

Two environments, by the tier's promise: ``synced`` commits to the medium, ``written`` survives a killed process only.
A value is the terms, as in a terms file, and the bytes. Invariant: what is here has passed its root check and has
its terms with it; a shard is in one environment.

    u32 length of the terms | terms | bytes of the shard
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import lmdb

from da.core.types import BlobId, ShardIndex
from storage.core.errors import MalformedRecord
from storage.core.records import ShardTerms, decode_key, decode_terms, encode_key, encode_terms
from storage.node.environment import Environment

FIRST_MAP_BYTES = 1 << 26
"""Bytes of address space at first; a full map is doubled where it stands, since no reader outlives its call."""

PAGE_SHARDS = 1024
"""Shards looked at in one read transaction while all are walked through."""

_SYNCED, _WRITTEN = True, False

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallShard:
    """A shard as it goes in."""

    blob: BlobId
    terms: ShardTerms
    body: bytes | memoryview


class SmallShards:
    """The small shards of one home; thread-safe."""

    def __init__(self, path: Path) -> None:
        """Open or make both environments."""
        self._lock = threading.Lock()
        self._is_open = True
        self._environments = {_SYNCED: _open(path / "synced", True), _WRITTEN: _open(path / "written", False)}

    def close(self) -> None:
        """Close both."""
        with self._lock:
            if self._is_open:
                self._is_open = False
                for environment in self._environments.values():
                    environment.close()

    def put_many(self, shards: Sequence[SmallShard], *, is_synced: bool) -> None:
        """Keep ``shards`` in one transaction, all or none; with ``is_synced`` they are on the medium afterwards.

        Raises: DiskFull.
        """

        def put(txn: lmdb.Transaction) -> None:
            for shard in shards:
                txn.put(encode_key(shard.blob, shard.terms.shard), _encode(shard.terms, shard.body))

        with self._lock:
            self._write(is_synced, put)
            self._remove(not is_synced, [encode_key(shard.blob, shard.terms.shard) for shard in shards])

    def get(self, blob: BlobId, shard: ShardIndex) -> tuple[ShardTerms, bytes] | None:
        """Return terms and bytes of a shard, None where there is none.

        Raises: MalformedRecord.
        """
        found = self._find(blob, shard)
        return None if found is None else _decode(found[1])

    def is_synced(self, blob: BlobId, shard: ShardIndex) -> bool:
        """Tell whether a shard is in the synced environment."""
        found = self._find(blob, shard)
        return found is not None and found[0]

    def save_terms(self, blob: BlobId, terms: ShardTerms, *, is_synced: bool) -> None:
        """Replace the terms of a shard; with ``is_synced`` it moves to the synced environment, if it wasn't there.

        Raises: DiskFull, FileNotFoundError.
        """
        found = self._find(blob, terms.shard)
        if found is None:
            raise FileNotFoundError(f"small shard {terms.shard} of {blob.hex()}")
        _, body = _decode(found[1])
        self.put_many([SmallShard(blob=blob, terms=terms, body=body)], is_synced=is_synced or found[0])

    def delete(self, blob: BlobId, shard: ShardIndex) -> None:
        """Remove a shard; one that is not there is no error."""
        with self._lock:
            for is_synced in (_SYNCED, _WRITTEN):
                self._remove(is_synced, [encode_key(blob, shard)])

    def iterate_keys(self) -> Iterator[tuple[BlobId, ShardIndex]]:
        """Yield all shards, in pages."""
        for environment in self._environments.values():
            start = b""
            while True:
                page: list[bytes] = []
                with self._lock, environment.read() as txn, txn.cursor() as cursor:
                    found = cursor.set_range(start) if start else cursor.first()
                    while found and len(page) < PAGE_SHARDS:
                        page.append(bytes(cursor.key()))
                        found = cursor.next()
                for key in page:
                    yield decode_key(key)
                if len(page) < PAGE_SHARDS:
                    break
                start = page[-1] + b"\0"

    def _find(self, blob: BlobId, shard: ShardIndex) -> tuple[bool, bytes] | None:
        key = encode_key(blob, shard)
        with self._lock:
            for is_synced, environment in self._environments.items():
                with environment.read() as txn:
                    value = txn.get(key)
                if value is not None:
                    return is_synced, bytes(value)
        return None

    def _remove(self, is_synced: bool, keys: Sequence[bytes]) -> None:
        environment = self._environments[is_synced]
        with environment.read() as txn:
            present = [key for key in keys if txn.get(key) is not None]
        if present:
            self._write(is_synced, lambda txn: [txn.delete(key) for key in present])

    def _write(self, is_synced: bool, change: Callable[[lmdb.Transaction], T]) -> T:
        environment = self._environments[is_synced]
        while True:
            try:
                with environment.write() as txn:
                    return change(txn)
            except lmdb.MapFullError:
                environment.grow(2 * environment.map_bytes)


def _open(path: Path, is_synced: bool) -> Environment:
    """Open an environment with room to grow; one that is not synced may not survive a power cut."""
    data = path / "data.mdb"
    on_disk = data.stat().st_size if data.exists() else 0
    map_bytes = max(FIRST_MAP_BYTES, (2 * on_disk + 4095) // 4096 * 4096)
    return Environment(path, map_bytes=map_bytes, is_synced=is_synced)


def _encode(terms: ShardTerms, body: bytes | memoryview) -> bytes:
    encoded = encode_terms(terms)
    return b"".join((len(encoded).to_bytes(4, "big"), encoded, body))


def _decode(value: bytes) -> tuple[ShardTerms, bytes]:
    body_at = 4 + int.from_bytes(value[:4], "big")
    terms = decode_terms(value[4:body_at])
    if len(value) != body_at + terms.shard_bytes:
        raise MalformedRecord(f"small shard of {len(value) - body_at} bytes, its terms say {terms.shard_bytes}")
    return terms, value[body_at:]
