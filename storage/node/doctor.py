"""Looks at a home without changing it: every shard hashed, disk against index, and what to do about what is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from da.core.types import BlobId, ShardIndex
from storage.core.errors import MalformedRecord, ShelfUnavailable, UnknownShard
from storage.core.quota import compute_charge_bytes
from storage.node.engine import StoreEngine
from storage.node.lmdb_pages import find_damage
from storage.node.proofs import is_intact


@dataclass(slots=True, kw_only=True)
class Diagnosis:
    """What was found."""

    num_shards: int = 0
    """Looked at."""
    num_bytes: int = 0
    good: int = 0
    missing: list[str] = field(default_factory=list)
    """In the index and not on disk."""
    damaged: list[str] = field(default_factory=list)
    """Not what their headers say."""
    unreachable: int = 0
    """Cold shards whose bucket did not answer."""
    orphans: int = 0
    """Shards on the shelf that no terms name; nothing deletes them by itself."""
    not_indexed: int = 0
    """Shards on disk that the index does not have."""
    quarantined: int = 0
    """Files in quarantine."""
    are_counters_right: bool = True

    def get_advice(self) -> list[str]:
        """Return what a person should do, most urgent first; nothing when all is well."""
        advice = []
        if self.missing or self.damaged:
            advice.append(
                f"{len(self.missing) + len(self.damaged)} shards must be rebuilt: start the node, it repairs by itself"
            )
        if self.unreachable:
            advice.append(f"{self.unreachable} cold shards can't be reached: check the bucket and its keys")
        if not self.are_counters_right:
            advice.append("counters differ from the records: the next start puts them right")
        if self.not_indexed:
            advice.append(f"{self.not_indexed} shards on disk are not in the index: the next start finds them again")
        if self.orphans:
            advice.append(f"{self.orphans} shards on the shelf belong to nothing: left by a crash, delete them by hand")
        if self.quarantined:
            advice.append(f"{self.quarantined} files in quarantine: look at them, then delete them")
        return advice


def diagnose(engine: StoreEngine) -> Diagnosis:
    """Look at everything; reads every byte."""
    found = Diagnosis()
    used = 0
    for blob, shard, record in engine.index.iterate_keys():
        found.num_shards += 1
        if record is None:
            found.damaged.append(_name(blob, shard))
            continue
        found.num_bytes += record.shard_bytes
        used += compute_charge_bytes(record.shard_bytes)
        try:
            if is_intact(engine, blob, shard):
                found.good += 1
            else:
                found.damaged.append(_name(blob, shard))
        except UnknownShard:
            found.missing.append(_name(blob, shard))
        except (MalformedRecord, OSError):
            found.damaged.append(_name(blob, shard))
        except ShelfUnavailable:
            found.unreachable += 1
    totals = engine.index.get_totals()
    found.are_counters_right = (totals.used_bytes, totals.num_shards) == (used, found.num_shards)
    found.orphans = sum(1 for _ in _find_orphans(engine))
    found.not_indexed = sum(1 for _ in _find_not_indexed(engine))
    found.quarantined = _count_files(engine.disk.home / "quarantine")
    return found


def _find_orphans(engine: StoreEngine) -> Iterator[tuple[BlobId, ShardIndex]]:
    try:
        for blob, shard in engine.disk.shelf.iterate_keys():
            if engine.index.get(blob, shard) is None:
                yield blob, shard
    except ShelfUnavailable:
        return  # a listing that broke off says nothing


def find_broken_databases(home: Path) -> list[str]:
    """Return what is wrong with the home's databases; where something is, they must not be opened without changes."""
    names = ("index", "small/synced", "small/written")
    found = {name: find_damage(home / name / "data.mdb") for name in names}
    return [f"{home / name}: {damage}" for name, damage in found.items() if damage]


def _find_not_indexed(engine: StoreEngine) -> Iterator[tuple[BlobId, ShardIndex]]:
    found = ((entry.blob, entry.shard) for entry in engine.disk.iterate_found() if entry.body_bytes is not None)
    for blob, shard in chain(found, engine.disk.small.iterate_keys()):
        if engine.index.get(blob, shard) is None:
            yield blob, shard


def _count_files(directory: Path) -> int:
    return sum(1 for path in directory.iterdir() if path.is_file()) if directory.is_dir() else 0


def _name(blob: BlobId, shard: ShardIndex) -> str:
    return f"{blob.hex()}.{shard}"
