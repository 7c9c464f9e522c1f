"""Where bytes lie: blobs received in place, buffers that come back, columns hashed by several threads."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from da import columns
from da.blob_buffer import BlobBuffer
from da.codec import decode_blob, encode_blob, finish_blob
from da.core import blob as blob_module
from da.core.errors import InconsistentBlob
from da.core.merkle import RootBuilder, compute_root
from da.memory import BufferPool


@settings(max_examples=80, deadline=None)
@given(size=st.integers(0, 300), k=st.integers(1, 5), stripe=st.integers(1, 90), seed=st.integers(0, 999))
def test_whatever_k_shards_come_in_the_blob_is_the_same(size: int, k: int, stripe: int, seed: int) -> None:
    rng = random.Random(seed)
    data, chosen, pool = rng.randbytes(size), frozenset(rng.sample(range(k + 3), k)), BufferPool()
    with mock.patch.object(blob_module, "STRIPE_BYTES", stripe):
        encoded = encode_blob(data, num_data=k, num_shards=k + 3, leaf_bytes=64)
        buffer = BlobBuffer(encoded.header, pool)
        for index in chosen:
            for piece, source in zip(buffer.get_shard(index), encoded.shards[index], strict=True):
                piece[:] = source
        assert finish_blob(buffer, chosen) == data


def test_shards_never_overlap() -> None:
    with mock.patch.object(blob_module, "STRIPE_BYTES", 100):
        header = encode_blob(bytes(250), num_data=3, num_shards=5, leaf_bytes=64).header
        buffer = BlobBuffer(header, BufferPool())
        shards = [buffer.get_shard(index) for index in range(5)]
    for index, shard in enumerate(shards):
        for piece in shard:
            piece[:] = bytes([index + 1]) * len(piece)
    assert [{bytes(piece[:1]) for piece in shard} for shard in shards] == [{bytes([index + 1])} for index in range(5)]
    assert all(set(piece) == {index + 1} for index, shard in enumerate(shards) for piece in shard)


def test_a_lent_buffer_comes_back_when_its_last_slice_is_gone() -> None:
    pool = BufferPool()
    whole = pool.lend(1000)
    address = np.frombuffer(whole, dtype=np.uint8).ctypes.data

    def is_back() -> bool:
        taken = pool.take(1000)
        same: bool = np.frombuffer(taken, dtype=np.uint8).ctypes.data == address
        if same:
            pool.give_back(taken)
        return same

    part = np.frombuffer(whole[10:20].toreadonly(), dtype=np.uint8)[2:]
    del whole
    assert not is_back()
    del part
    assert is_back()


def test_the_bytes_that_were_read_are_read_only() -> None:
    encoded = encode_blob(b"x" * 100, num_data=2, num_shards=4, leaf_bytes=64)
    data = decode_blob(encoded.header, {index: b"".join(encoded.shards[index]) for index in (0, 3)})
    with pytest.raises(TypeError, match="read-only"):
        data[0] = 1


@pytest.mark.parametrize("leaf_bytes", [64, 1024, 65_536, 1 << 20])
@pytest.mark.parametrize("sizes", [(3_000_000,), (70_001, 1, 2_500_000)])
def test_threads_hash_like_one(leaf_bytes: int, sizes: tuple[int, ...]) -> None:
    """Pieces that end within a leaf, and several of them."""
    pieces = [[random.Random(size + shard).randbytes(size) for size in sizes] for shard in range(3)]
    builders = [RootBuilder(leaf_bytes=leaf_bytes) for _ in pieces]
    with ThreadPoolExecutor(2) as threads:
        for number, size in enumerate(sizes):
            views = [memoryview(shard[number]) for shard in pieces]
            columns.hash_columns(
                builders,
                size,
                lambda views=views: lambda start, stop: [view[start:stop] for view in views],  # type: ignore[misc]
                leaf_bytes=leaf_bytes,
                num_shards=3,
                executor=threads,
            )
    expected = [compute_root(b"".join(shard), leaf_bytes=leaf_bytes) for shard in pieces]
    assert [builder.finish() for builder in builders] == expected


def test_threads_give_the_same_blob_and_the_same_verdict() -> None:
    data = random.Random(3).randbytes(5_000_001)
    alone = encode_blob(data, num_data=3, num_shards=5, leaf_bytes=1024)
    shards = {index: b"".join(alone.shards[index]) for index in (1, 3, 4)}
    with ThreadPoolExecutor(2) as threads:
        assert encode_blob(data, num_data=3, num_shards=5, leaf_bytes=1024, executor=threads).blob == alone.blob
        assert decode_blob(alone.header, shards, executor=threads) == data
        shards[4] = shards[4][:-1] + b"\0"
        with pytest.raises(InconsistentBlob) as caught:
            decode_blob(alone.header, shards, executor=threads)
    assert caught.value.evidence is not None
    assert caught.value.evidence.shard == 0
