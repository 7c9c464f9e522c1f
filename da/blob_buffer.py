"""One blob in memory, as it comes in: every data shard is received where its bytes belong, so nothing is put together.

The pieces of a data shard are views of the blob's own buffer. A piece of a stripe that is padded has a buffer beside
it, unless it is the very last one, behind which there is room; parity, which a reader takes when data is missing, lies
beside it too. Invariant: views of different shards never overlap.
"""

from __future__ import annotations

from da.core.blob import BlobHeader, StripeSpan, compute_used_bytes, iterate_stripes
from da.memory import BufferPool


class BlobBuffer:
    """Room for one blob and for the shards it is read from; each shard has one writer at a time."""

    def __init__(self, header: BlobHeader, pool: BufferPool) -> None:
        self.header = header
        self.spans = tuple(iterate_stripes(header.size_bytes, header.num_data))
        self._pool = pool
        last = self.spans[-1] if self.spans else None
        self._whole = pool.lend(last.start + header.num_data * last.piece_bytes) if last else memoryview(b"")
        self._shards: dict[int, list[memoryview]] = {}
        self._beside: list[memoryview] = []

    def get_shard(self, index: int) -> list[memoryview]:
        """Return where the pieces of shard ``index`` go, one a stripe."""
        if index not in self._shards:
            self._shards[index] = [self._get_piece(index, span) for span in self.spans]
        return self._shards[index]

    def finish(self) -> memoryview:
        """Put the padded pieces in place and return the blob, read-only; all data shards must be there.

        The memory returns to the pool when nobody refers to the blob or a part of it.
        """
        for index in range(self.header.num_data):
            for span, piece in zip(self.spans, self.get_shard(index), strict=True):
                if self._is_beside(index, span):
                    start = span.start + index * span.piece_bytes
                    num_bytes = compute_used_bytes(span, index)
                    self._whole[start : start + num_bytes] = piece[:num_bytes]
        self.release()
        return self._whole[: self.header.size_bytes].toreadonly()

    def release(self) -> None:
        """Give back what lies beside the blob; nobody may write to any shard any more."""
        self._shards.clear()
        self._pool.give_back(*self._beside)
        self._beside.clear()

    def _get_piece(self, index: int, span: StripeSpan) -> memoryview:
        if self._is_beside(index, span):
            piece = self._pool.take(span.piece_bytes)
            self._beside.append(piece)
            return piece
        start = span.start + index * span.piece_bytes
        return self._whole[start : start + span.piece_bytes]

    def _is_beside(self, index: int, span: StripeSpan) -> bool:
        if index >= self.header.num_data:
            return True
        return span is not self.spans[-1] and compute_used_bytes(span, index) < span.piece_bytes
