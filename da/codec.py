"""Blobs to shards and back (DESIGN 5; da/SPEC.md, *Code*).

Coding, hashing and the reader's check, over buffers in memory; no network. Data pieces are views of the blob, in and
out, so only parity and padded tails take memory beside it. Invariant: ``decode_blob`` returns the one byte string whose
shards have the header's roots, or raises ``InconsistentBlob``, whichever k shards it is given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

from da.blob_buffer import BlobBuffer
from da.columns import Coder, hash_columns
from da.core.blob import (
    MAX_BLOB_BYTES,
    BlobHeader,
    StripeSpan,
    compute_blob_id,
    compute_shard_bytes,
    compute_used_bytes,
    iterate_stripes,
    needs_folds,
)
from da.core.errors import BlobTooLarge, Inconsistency, InconsistentBlob, NotEnoughShards
from da.core.matrix import compute_parity_rows, compute_recovery_rows
from da.core.merkle import RootBuilder
from da.core.types import BlobId, ShardRoot
from da.folding import fold_pieces, make_seed
from da.kernel import Kernel, get_kernel
from da.memory import BufferPool, allocate

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedBlob:
    """A blob ready to be sent."""

    header: BlobHeader
    """Code, size and roots."""
    blob: BlobId
    """Its name."""
    shards: tuple[tuple[memoryview, ...], ...]
    """For each seat the pieces of its shard, one a stripe; their concatenation is the shard."""
    parity: tuple[memoryview, ...]
    """The buffers of ``shards`` that are not views of the blob; a pool may take them back after use."""


def encode_blob(
    data: Buffer,
    *,
    num_data: int,
    num_shards: int,
    leaf_bytes: int,
    kernel: Kernel | None = None,
    executor: Executor | None = None,
    pool: BufferPool | None = None,
) -> EncodedBlob:
    """Code, hash and fold ``data``; with an ``executor`` shards are hashed and folded in parallel.

    Parity lies in buffers of ``pool``; give ``parity`` back to it after use.

    Raises:
        BlobTooLarge: more than 10^13 bytes.
        InvalidScheme: not 1 <= k <= n <= 64.
    """
    view = memoryview(data).cast("B") if len(data) else memoryview(b"")
    if len(view) > MAX_BLOB_BYTES:
        raise BlobTooLarge(limit_bytes=MAX_BLOB_BYTES, got_bytes=len(view))
    kernel = kernel or get_kernel()
    take = allocate if pool is None else pool.take
    hasher = ShardHasher(num_data=num_data, num_shards=num_shards, leaf_bytes=leaf_bytes, kernel=kernel)
    shards: list[list[memoryview]] = [[] for _ in range(num_shards)]
    made: list[memoryview] = []
    for span in iterate_stripes(len(view), num_data):
        pieces = cut_stripe(view[span.start : span.stop], num_data)
        parity = [take(span.piece_bytes) for _ in range(num_shards - num_data)]
        hasher.update(pieces, parity, executor=executor)
        made += parity
        for shard, piece in zip(shards, (*pieces, *parity), strict=True):
            shard.append(piece)
    header = hasher.finish(size_bytes=len(view))
    if needs_folds(len(view), num_data, num_shards):
        header = add_folds(header, shards[:num_data], kernel=kernel, executor=executor)
    return EncodedBlob(
        header=header,
        blob=compute_blob_id(header),
        shards=tuple(tuple(pieces) for pieces in shards),
        parity=tuple(made),
    )


class ShardHasher:
    """Makes parity stripe by stripe, and the roots of all n shards; holds no bytes of the blob."""

    def __init__(self, *, num_data: int, num_shards: int, leaf_bytes: int, kernel: Kernel | None = None) -> None:
        self._num_data = num_data
        self._rows = compute_parity_rows(num_data, num_shards)
        self._leaf_bytes = leaf_bytes
        self._kernel = kernel or get_kernel()
        self._builders = [RootBuilder(leaf_bytes=leaf_bytes) for _ in range(num_shards)]

    def update(
        self, pieces: Sequence[memoryview], parity: Sequence[memoryview], *, executor: Executor | None = None
    ) -> None:
        """Fill ``parity`` from the k data ``pieces`` of the next stripe, and hash all n."""
        product = self._kernel.bind(self._rows, pieces, parity)
        shards = (*pieces, *parity)

        def code(start: int, stop: int) -> list[memoryview]:
            product(start, stop)
            return [shard[start:stop] for shard in shards]

        hash_columns(
            self._builders,
            len(pieces[0]),
            lambda: code,
            leaf_bytes=self._leaf_bytes,
            num_shards=len(shards),
            executor=executor,
        )

    def finish(self, *, size_bytes: int) -> BlobHeader:
        """Return the header, without folds."""
        return BlobHeader(
            num_data=self._num_data,
            num_shards=len(self._builders),
            leaf_bytes=self._leaf_bytes,
            size_bytes=size_bytes,
            shard_roots=tuple(builder.finish() for builder in self._builders),
        )


def add_folds(
    header: BlobHeader,
    data_shards: Sequence[Sequence[memoryview]],
    *,
    kernel: Kernel | None = None,
    executor: Executor | None = None,
) -> BlobHeader:
    """Return ``header`` with the folds of its data shards, each given as the pieces of its stripes."""
    seed = make_seed(header)
    run = map if executor is None else executor.map
    folds = tuple(run(lambda pieces: fold_pieces(seed, pieces, kernel=kernel), data_shards))
    return header.with_folds(folds)


def decode_blob(
    header: BlobHeader,
    shards: Mapping[int, Buffer],
    *,
    kernel: Kernel | None = None,
    pool: BufferPool | None = None,
    executor: Executor | None = None,
) -> memoryview:
    """Decode any k shards that were verified against their roots, re-encode, and compare all other roots.

    Raises:
        NotEnoughShards: fewer than k shards.
        InconsistentBlob: the roots are not those of one code word with zero padding.
    """
    chosen = _choose_shards(header, shards)
    buffer = BlobBuffer(header, pool or BufferPool(max_bytes=0))
    for index, shard in chosen.items():
        for span, piece in zip(buffer.spans, buffer.get_shard(index), strict=True):
            piece[:] = shard[span.piece_start : span.piece_start + span.piece_bytes]
    return finish_blob(buffer, frozenset(chosen), kernel=kernel, executor=executor)


def finish_blob(
    buffer: BlobBuffer,
    present: frozenset[int],
    *,
    kernel: Kernel | None = None,
    executor: Executor | None = None,
) -> memoryview:
    """Do the same for k verified shards, ``present``, that lie in ``buffer`` already.

    The buffer is used up, unless this raises: then the shards are still there, until ``BlobBuffer.release``.
    """
    header, kernel = buffer.header, kernel or get_kernel()
    kept = tuple(sorted(present))
    missing = tuple(index for index in range(header.num_data) if index not in present)
    rows = compute_recovery_rows(header.num_data, header.num_shards, kept, missing)
    check = RootCheck(header, present, kernel)
    for number, span in enumerate(buffer.spans):
        made = [buffer.get_shard(index)[number] for index in missing]
        if made:
            kernel.multiply(rows, [buffer.get_shard(index)[number] for index in kept], made)
        check.update(span, [buffer.get_shard(index)[number] for index in range(header.num_data)], executor=executor)
    check.finish()
    return buffer.finish()


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
    builder = RootBuilder(leaf_bytes=leaf_bytes)
    builder.update(shard)
    return builder.finish()


def cut_stripe(stripe: memoryview, num_data: int) -> list[memoryview]:
    """Return the k data pieces of a stripe: views of it, but for a last one that needs zeros."""
    piece_bytes = -(-len(stripe) // num_data)
    pieces = []
    for start in range(0, num_data * piece_bytes, piece_bytes):
        piece = stripe[start : start + piece_bytes]
        if len(piece) < piece_bytes:
            piece = memoryview(bytes(piece) + bytes(piece_bytes - len(piece)))
        pieces.append(piece)
    return pieces


def _choose_shards(header: BlobHeader, shards: Mapping[int, Buffer]) -> dict[int, memoryview]:
    chosen = sorted(shards)[: header.num_data]
    if len(chosen) < header.num_data:
        raise NotEnoughShards(blob=compute_blob_id(header), expected=header.num_data, got=len(chosen), faults=())
    return {index: memoryview(shards[index]) for index in chosen}


class RootCheck:
    """Compares the roots of all shards not yet verified with the header's, stripe by stripe.

    Parity is made and hashed in small blocks and never kept, so nothing of it leaves the cache.
    """

    def __init__(self, header: BlobHeader, verified: frozenset[int], kernel: Kernel | None = None) -> None:
        self._header = header
        self._kernel = kernel or get_kernel()
        self._verified = verified
        doubtful = [index for index in range(header.num_shards) if index not in verified]
        self._builders = {index: RootBuilder(leaf_bytes=header.leaf_bytes) for index in doubtful}
        self._parity = [index for index in doubtful if index >= header.num_data]
        all_rows = compute_parity_rows(header.num_data, header.num_shards)
        self._rows = tuple(all_rows[index - header.num_data] for index in self._parity)
        self._badly_padded: int | None = None

    def update(self, span: StripeSpan, pieces: Sequence[memoryview], *, executor: Executor | None = None) -> None:
        """Take the k data pieces of the next stripe."""
        self.update_block(pieces, [compute_used_bytes(span, index) for index in range(len(pieces))], executor=executor)

    def update_block(
        self, pieces: Sequence[memoryview], used_bytes: Sequence[int], *, executor: Executor | None = None
    ) -> None:
        """Take the next columns of the k data pieces, of which so many bytes each are the blob's and the rest zeros."""
        for index, (piece, num_bytes) in enumerate(zip(pieces, used_bytes, strict=True)):
            if self._badly_padded is None and any(piece[num_bytes:]):
                self._badly_padded = index

        def open_coder() -> Coder:
            scratch: list[memoryview] = []

            def code(start: int, stop: int) -> list[memoryview]:
                if not scratch:
                    scratch.extend(allocate(stop - start) for _ in self._parity)
                block = [piece[start:stop] for piece in pieces]
                made = [buffer[: stop - start] for buffer in scratch]
                self._kernel.multiply(self._rows, block, made)
                by_index = dict(enumerate(block)) | dict(zip(self._parity, made, strict=True))
                return [by_index[index] for index in self._builders]

            return code

        hash_columns(
            list(self._builders.values()),
            len(pieces[0]),
            open_coder,
            leaf_bytes=self._header.leaf_bytes,
            num_shards=len(pieces) + len(self._parity),
            executor=executor,
        )

    def finish(self) -> None:
        """Check that all roots agree.

        Raises:
            InconsistentBlob: they don't, or the padding is not zeros; carries what was seen.
        """
        expected, shard = self._header.shard_roots, self._badly_padded
        computed = {index: builder.finish() for index, builder in self._builders.items()}
        if shard is None:
            shard = next((index for index, root in sorted(computed.items()) if root != expected[index]), None)
        if shard is not None:
            raise InconsistentBlob(
                blob=compute_blob_id(self._header),
                evidence=Inconsistency(
                    seats=tuple(sorted(self._verified)),
                    shard=shard,
                    expected_root=expected[shard],
                    computed_root=computed.get(shard, expected[shard]),
                ),
            )
