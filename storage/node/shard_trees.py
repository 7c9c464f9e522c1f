"""Trees of shards that are read by ranges: the first range reads the whole shard, the next ones only their leaves.

Invariant: a tree is kept only when it leads to the shard's root, and leaves are read from the medium each time; so
damage that comes later gives a reader leaves that do not verify, never wrong bytes.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

from da.core.leaf_ranges import build_levels, compute_range_siblings
from da.core.merkle import RootBuilder, compute_num_leaves
from da.core.types import BlobId, ShardIndex
from storage.core.errors import MalformedRequest, UnknownShard
from storage.node.engine import StoreEngine
from storage.node.proofs import READ_BYTES, load_header, read_all

KEPT_BYTES = 64 << 20
"""Bytes of trees in memory: those of 60 GB of shards with leaves of 64 KiB."""


class ShardTrees:
    """The trees of one node; thread-safe."""

    def __init__(self, engine: StoreEngine) -> None:
        """Read ``engine``'s shards."""
        self._engine = engine
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[BlobId, ShardIndex], tuple[bytes, ...]] = OrderedDict()
        self._num_bytes = 0

    def read_range(
        self, blob: BlobId, shard: ShardIndex, first: int, count: int, *, max_bytes: int
    ) -> tuple[tuple[bytes, ...], bytes]:
        """Return the siblings and the bytes of ``count`` leaves from ``first`` on.

        Raises: UnknownShard; MalformedRequest for leaves beyond the shard, or more than ``max_bytes`` of them.
        """
        _, header = load_header(self._engine, blob, shard)
        record = self._engine.get_record(blob, shard)
        num_leaves = compute_num_leaves(record.shard_bytes, header.leaf_bytes)
        if count < 1 or first + count > num_leaves:
            raise MalformedRequest(f"leaves {first} to {first + count} of a shard with {num_leaves} leaves")
        if count > 1 and count * header.leaf_bytes > max_bytes:
            raise MalformedRequest(f"{count} leaves of {header.leaf_bytes} bytes, at most {max_bytes} bytes at once")
        levels = self._get_levels(blob, shard)
        start = first * header.leaf_bytes
        reader = self._engine.open_body(blob, shard)
        try:
            leaves = read_all(reader, start, min(count * header.leaf_bytes, record.shard_bytes - start))
        finally:
            reader.close()
        return compute_range_siblings(levels, first, first + count), leaves

    def _get_levels(self, blob: BlobId, shard: ShardIndex) -> tuple[bytes, ...]:
        with self._lock:
            levels = self._kept.get((blob, shard))
            if levels is not None:
                self._kept.move_to_end((blob, shard))
                return levels
        levels = self._build(blob, shard)
        size = sum(map(len, levels))
        with self._lock:
            if size <= KEPT_BYTES and (blob, shard) not in self._kept:
                self._kept[blob, shard] = levels
                self._num_bytes += size
            while self._num_bytes > KEPT_BYTES:
                _, dropped = self._kept.popitem(last=False)
                self._num_bytes -= sum(map(len, dropped))
        return levels

    def _build(self, blob: BlobId, shard: ShardIndex) -> tuple[bytes, ...]:
        _, header = load_header(self._engine, blob, shard)
        builder, at = RootBuilder(leaf_bytes=header.leaf_bytes), 0
        reader = self._engine.open_body(blob, shard)
        try:
            while chunk := reader.read(at, READ_BYTES):
                builder.update(chunk)
                at += len(chunk)
        finally:
            reader.close()
        if shard >= header.num_shards or builder.finish() != header.shard_roots[shard]:
            self._engine.quarantine(blob, shard)  # noticed by a reader before the scrubber came: repair rebuilds it
            raise UnknownShard(blob=blob, shard=shard)
        return build_levels(builder.leaf_hashes())
