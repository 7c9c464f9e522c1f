"""Blobs to shards and back (DESIGN 5; da/SPEC.md, *Code*).

Coding, hashing and the reader's check, over buffers in memory; no network. Data pieces are views of the blob, so only
parity and the padded tail take new memory. Invariant: ``decode_blob`` returns the one byte string whose shards have
the header's roots, or raises ``InconsistentBlob``, whichever k shards it is given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

from da.core.blob import (
    MAX_BLOB_BYTES,
    BlobHeader,
    StripeSpan,
    compute_blob_id,
    compute_shard_bytes,
    iterate_stripes,
)
from da.core.errors import BlobTooLarge, InconsistentBlob, NotEnoughShards
from da.core.matrix import compute_parity_rows, compute_recovery_rows
from da.core.merkle import RootBuilder
from da.core.types import BlobId, ShardRoot
from da.kernel import Kernel, get_kernel
from da.memory import allocate

Buffer = bytes | bytearray | memoryview

CHECK_BLOCK_BYTES = 256 * 1024
"""Bytes of each shard that a reader re-encodes and hashes at once; k + m of them fit a second-level cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedBlob:
    """A blob ready to be sent."""

    header: BlobHeader
    """Code, size and roots."""
    blob: BlobId
    """Its name."""
    shards: tuple[tuple[memoryview, ...], ...]
    """For each seat the pieces of its shard, one a stripe; their concatenation is the shard."""


def encode_blob(
    data: Buffer,
    *,
    num_data: int,
    num_shards: int,
    leaf_bytes: int,
    kernel: Kernel | None = None,
    executor: Executor | None = None,
) -> EncodedBlob:
    """Code and hash ``data``; with an ``executor`` the shards are hashed in parallel.

    Raises:
        BlobTooLarge: more than 10^13 bytes.
        InvalidScheme: not 1 <= k <= n <= 64.
    """
    view = memoryview(data).cast("B") if len(data) else memoryview(b"")
    if len(view) > MAX_BLOB_BYTES:
        raise BlobTooLarge(limit_bytes=MAX_BLOB_BYTES, got_bytes=len(view))
    shards = _encode_shards(view, num_data, num_shards, kernel or get_kernel())
    run = map if executor is None else executor.map
    roots = tuple(run(_compute_shard_root, shards, [leaf_bytes] * num_shards))
    header = BlobHeader(
        num_data=num_data,
        num_shards=num_shards,
        leaf_bytes=leaf_bytes,
        size_bytes=len(view),
        shard_roots=roots,
    )
    return EncodedBlob(header=header, blob=compute_blob_id(header), shards=shards)


def decode_blob(header: BlobHeader, shards: Mapping[int, Buffer], *, kernel: Kernel | None = None) -> bytes:
    """Decode any k shards that were verified against their roots, re-encode, and compare all other roots.

    Raises:
        NotEnoughShards: fewer than k shards.
        InconsistentBlob: the roots are not those of one code word with zero padding.
    """
    kernel = kernel or get_kernel()
    chosen = _choose_shards(header, shards)
    check = _RootCheck(header, frozenset(chosen), kernel)
    parts: list[memoryview] = []
    is_padded_with_zeros = True
    for span in iterate_stripes(header.size_bytes, header.num_data):
        pieces = _recover_stripe(header, chosen, span, kernel)
        check.update(pieces)
        for index, piece in enumerate(pieces):
            num_bytes = max(0, min(span.piece_bytes, span.stop - span.start - index * span.piece_bytes))
            parts.append(piece[:num_bytes])
            is_padded_with_zeros = is_padded_with_zeros and not any(piece[num_bytes:])
    if not is_padded_with_zeros or not check.finish():
        raise InconsistentBlob(blob=compute_blob_id(header))
    return b"".join(parts)


def recover_shards(
    header: BlobHeader, shards: Mapping[int, Buffer], wanted: Sequence[int], *, kernel: Kernel | None = None
) -> list[bytearray]:
    """Rebuild the ``wanted`` shards from any k verified ones, for repair; the caller compares their roots.

    Raises:
        NotEnoughShards: fewer than k shards.
    """
    chosen = _choose_shards(header, shards)
    rebuilt = [bytearray(compute_shard_bytes(header.size_bytes, header.num_data)) for _ in wanted]
    present = tuple(sorted(chosen))
    rows = compute_recovery_rows(header.num_data, header.num_shards, present, tuple(wanted))
    (kernel or get_kernel()).multiply(rows, [chosen[index] for index in present], rebuilt)
    return rebuilt


def compute_shard_root(shard: Buffer, *, leaf_bytes: int) -> ShardRoot:
    """Return the Merkle root of one whole shard."""
    return _compute_shard_root((memoryview(shard),), leaf_bytes)


def _encode_shards(
    view: memoryview, num_data: int, num_shards: int, kernel: Kernel
) -> tuple[tuple[memoryview, ...], ...]:
    rows = compute_parity_rows(num_data, num_shards)
    shards: list[list[memoryview]] = [[] for _ in range(num_shards)]
    for span in iterate_stripes(len(view), num_data):
        pieces = _cut_stripe(view, span, num_data)
        parity = [allocate(span.piece_bytes) for _ in rows]
        kernel.multiply(rows, pieces, parity)
        for shard, piece in zip(shards, (*pieces, *parity), strict=True):
            shard.append(piece)
    return tuple(tuple(pieces) for pieces in shards)


def _cut_stripe(view: memoryview, span: StripeSpan, num_data: int) -> list[memoryview]:
    pieces = []
    for index in range(num_data):
        start = span.start + index * span.piece_bytes
        piece = view[min(start, span.stop) : min(start + span.piece_bytes, span.stop)]
        if len(piece) < span.piece_bytes:
            piece = memoryview(bytes(piece) + bytes(span.piece_bytes - len(piece)))
        pieces.append(piece)
    return pieces


def _compute_shard_root(pieces: Sequence[memoryview], leaf_bytes: int) -> ShardRoot:
    builder = RootBuilder(leaf_bytes=leaf_bytes)
    for piece in pieces:
        builder.update(piece)
    return builder.finish()


def _choose_shards(header: BlobHeader, shards: Mapping[int, Buffer]) -> dict[int, memoryview]:
    chosen = sorted(shards)[: header.num_data]
    if len(chosen) < header.num_data:
        raise NotEnoughShards(blob=compute_blob_id(header), expected=header.num_data, got=len(chosen), faults=())
    return {index: memoryview(shards[index]) for index in chosen}


def _recover_stripe(
    header: BlobHeader, shards: Mapping[int, memoryview], span: StripeSpan, kernel: Kernel
) -> list[memoryview]:
    """Return the k data pieces of a stripe: views where the shard is there, new memory where it is not."""
    present = tuple(sorted(shards))
    missing = tuple(index for index in range(header.num_data) if index not in shards)
    rows = compute_recovery_rows(header.num_data, header.num_shards, present, missing)
    pieces = {i: shards[i][span.piece_start : span.piece_start + span.piece_bytes] for i in present}
    made = {i: allocate(span.piece_bytes) for i in missing}
    kernel.multiply(rows, [pieces[i] for i in present], [made[i] for i in missing])
    return [made[i] if i in made else pieces[i] for i in range(header.num_data)]


class _RootCheck:
    """Compares the roots of all shards not yet verified with the header's, stripe by stripe.

    Parity is made and hashed in small blocks and never kept, so nothing of it leaves the cache.
    """

    def __init__(self, header: BlobHeader, verified: frozenset[int], kernel: Kernel) -> None:
        self._header = header
        self._kernel = kernel
        doubtful = [index for index in range(header.num_shards) if index not in verified]
        self._builders = {index: RootBuilder(leaf_bytes=header.leaf_bytes) for index in doubtful}
        self._parity = [index for index in doubtful if index >= header.num_data]
        all_rows = compute_parity_rows(header.num_data, header.num_shards)
        self._rows = tuple(all_rows[index - header.num_data] for index in self._parity)
        self._scratch = [allocate(CHECK_BLOCK_BYTES) for _ in self._parity]

    def update(self, pieces: Sequence[memoryview]) -> None:
        """Take the k data pieces of the next stripe."""
        for start in range(0, len(pieces[0]), CHECK_BLOCK_BYTES):
            block = [piece[start : start + CHECK_BLOCK_BYTES] for piece in pieces]
            made = [buffer[: len(block[0])] for buffer in self._scratch]
            self._kernel.multiply(self._rows, block, made)
            by_index = dict(enumerate(block)) | dict(zip(self._parity, made, strict=True))
            for index, builder in self._builders.items():
                builder.update(by_index[index])

    def finish(self) -> bool:
        """Tell whether all roots agree."""
        roots = self._header.shard_roots
        return all(builder.finish() == roots[index] for index, builder in self._builders.items())
