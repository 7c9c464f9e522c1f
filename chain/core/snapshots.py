"""Snapshots for state sync: what a chunk holds and what the metadata promises (CHAIN.md, State; SPEC.md).

A snapshot is a sequence of entries, cut into chunks at entry borders.  An entry is the msgpack list [kind, key,
value]; the kinds come in ascending order, and keys ascend within a kind, so one state has exactly one snapshot.
Metadata is msgpack [format, chain id, height, app hash, [sha256 of each chunk]]; the snapshot's hash is sha256 of
SNAPSHOT_TAG and the metadata.  Invariant: state entries are believed only once their tree has the app hash that
the light client verified; the records of the newest block are checked against that hash and each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum

import msgpack

from chain.core.errors import InvalidSnapshot
from chain.core.hashing import SNAPSHOT_TAG, sha256

FORMAT = 2
"""Version of the layout; a node refuses any other."""
CHUNK_BYTES = 4 << 20
"""A chunk is closed when it has reached this size: CometBFT carries at most 16 MB, and lost ones are sent again."""
MAX_CHUNK_BYTES = 16_000_000
"""CometBFT's own limit of a chunk message, less its envelope."""
MAX_CHUNKS = 100_000
"""Metadata must fit into CometBFT's 4 MB snapshot message: 100,000 hashes are 3.4 MB."""


class EntryKind(IntEnum):
    """What an entry is."""

    STATE = 0
    """State key -> value; covered by the app hash."""
    BLOCK = 1
    """Height -> record of the newest block."""
    BLOCK_HEIGHT = 2
    """Its hash -> height."""
    RECEIPTS = 3
    """Height -> its receipts."""
    TRANSACTION = 4
    """Hash -> one of its transactions."""
    RECENT_HASH = 5
    """Height -> hash of a block that the state doesn't hold yet (``chain.core.block_hashes``), the newest last."""


Entry = tuple[int, bytes, bytes]
"""(kind, key, value)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What the metadata says."""

    chain_id: str
    """CometBFT's chain id."""
    height: int
    """Block whose state it is."""
    app_hash: bytes
    """32 bytes, after that block."""
    chunk_hashes: tuple[bytes, ...]
    """sha256 of each chunk."""


def encode_manifest(manifest: Manifest) -> bytes:
    """Encode the metadata."""
    fields = [FORMAT, manifest.chain_id, manifest.height, manifest.app_hash, list(manifest.chunk_hashes)]
    encoded: bytes = msgpack.packb(fields)
    return encoded


def decode_manifest(metadata: bytes) -> Manifest:
    """Read metadata that anybody may have made; raises InvalidSnapshot."""
    try:
        fields = msgpack.unpackb(metadata)
        number, chain_id, height, app_hash, hashes = fields
    except (ValueError, TypeError, msgpack.exceptions.UnpackException) as error:
        raise InvalidSnapshot(f"metadata can't be read: {error}") from error
    if number != FORMAT:
        raise InvalidSnapshot(f"format {number}, expected {FORMAT}")
    if not isinstance(chain_id, str) or not isinstance(height, int) or not 0 < height < 2**63:
        raise InvalidSnapshot("metadata has no chain id and height")
    if not isinstance(hashes, list) or not 0 < len(hashes) <= MAX_CHUNKS or not all(map(_is_hash, hashes)):
        raise InvalidSnapshot("metadata has no list of chunk hashes")
    if not _is_hash(app_hash):
        raise InvalidSnapshot("metadata has no app hash")
    return Manifest(chain_id=chain_id, height=height, app_hash=app_hash, chunk_hashes=tuple(hashes))


def compute_snapshot_hash(metadata: bytes) -> bytes:
    """Return the name under which peers offer the same snapshot."""
    return sha256(SNAPSHOT_TAG + metadata)


def cut_chunks(entries: Iterable[Entry]) -> Iterator[bytes]:
    """Yield the chunks of a sequence of entries."""
    pack = msgpack.Packer().pack
    parts: list[bytes] = []
    size = 0
    for entry in entries:
        encoded = pack(entry)
        parts.append(encoded)
        size += len(encoded)
        if size >= CHUNK_BYTES:
            yield b"".join(parts)
            parts, size = [], 0
    if parts:
        yield b"".join(parts)


def decode_chunk(chunk: bytes) -> list[Entry]:
    """Read a chunk; raises InvalidSnapshot."""
    unpacker = msgpack.Unpacker(max_buffer_size=MAX_CHUNK_BYTES)
    entries: list[Entry] = []
    end = 0
    try:
        unpacker.feed(chunk)
        for item in unpacker:
            kind, key, value = item
            if not isinstance(key, bytes) or not isinstance(value, bytes) or not 0 < len(key) <= 500:
                raise InvalidSnapshot("an entry has no key and value")
            entries.append((EntryKind(kind), key, value))
            end = unpacker.tell()
    except (ValueError, TypeError, msgpack.exceptions.UnpackException) as error:
        raise InvalidSnapshot(f"chunk can't be read: {error}") from error
    if end != len(chunk):
        raise InvalidSnapshot(f"chunk of {len(chunk)} bytes ends within an entry")
    return entries


def check_order(previous: tuple[int, bytes] | None, entries: Iterable[Entry]) -> tuple[int, bytes] | None:
    """Refuse entries that don't ascend; return the last (kind, key)."""
    for kind, key, _ in entries:
        if previous is not None and (kind, key) <= previous:
            raise InvalidSnapshot(f"entry {EntryKind(kind).name} {key.hex()} is out of order")
        previous = (kind, key)
    return previous


def _is_hash(value: object) -> bool:
    return isinstance(value, bytes) and len(value) == 32
