"""Headers, ids, stripes, and what a reader accepts."""

from __future__ import annotations

import dataclasses
import random
from itertools import combinations
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from da.codec import decode_blob, encode_blob
from da.core import blob as blob_module
from da.core.blob import (
    STRIPE_BYTES,
    BlobHeader,
    compute_blob_id,
    compute_shard_bytes,
    decode_header,
    encode_header,
    iterate_stripes,
)
from da.core.errors import InconsistentBlob, MalformedHeader, NotEnoughShards
from da.core.merkle import compute_root
from da.core.types import ShardRoot
from da.kernel import NumpyKernel


def encode(data: bytes, num_data: int = 2, num_shards: int = 4) -> tuple[BlobHeader, list[bytes]]:
    encoded = encode_blob(data, num_data=num_data, num_shards=num_shards, leaf_bytes=64)
    assert encoded.blob == compute_blob_id(encoded.header)
    return encoded.header, [b"".join(pieces) for pieces in encoded.shards]


@pytest.mark.parametrize("size", [0, 1, 2, 3, 63, 64, 65, 1023, 1024, 1025])
@pytest.mark.parametrize(("num_data", "num_shards"), [(1, 1), (1, 3), (2, 4), (4, 6), (22, 64)])
def test_round_trip_at_the_borders(size: int, num_data: int, num_shards: int) -> None:
    data = random.Random(size).randbytes(size)
    header, shards = encode(data, num_data, num_shards)
    assert {len(shard) for shard in shards} == {compute_shard_bytes(size, num_data)}
    last = range(num_shards - num_data, num_shards)
    assert decode_blob(header, {index: shards[index] for index in last}) == data
    assert decode_blob(header, dict(enumerate(shards))) == data


@settings(max_examples=60, deadline=None)
@given(data=st.binary(max_size=400), num_data=st.integers(1, 5), stripe=st.integers(1, 64), seed=st.integers(0, 999))
def test_round_trip_over_many_stripes(data: bytes, num_data: int, stripe: int, seed: int) -> None:
    """Stripes of a few bytes walk the same code as stripes of 64 MiB."""
    chosen = random.Random(seed).sample(range(num_data + 3), num_data)
    with mock.patch.object(blob_module, "STRIPE_BYTES", stripe):
        header, shards = encode(data, num_data, num_data + 3)
        assert decode_blob(header, {index: shards[index] for index in chosen}) == data
        covered = b"".join(data[span.start : span.stop] for span in iterate_stripes(len(data), num_data))
    assert covered == data


def test_a_shard_is_the_concatenation_over_stripes() -> None:
    with mock.patch.object(blob_module, "STRIPE_BYTES", 6):
        _, shards = encode(b"abcdefghij", num_data=2)
    assert shards[0] == b"abc" + b"gh"
    assert shards[1] == b"def" + b"ij"


def test_two_real_stripes() -> None:
    data = random.Random(0).randbytes(1024) * (STRIPE_BYTES // 1024) + b"tail"
    encoded = encode_blob(data, num_data=2, num_shards=3, leaf_bytes=65536)
    assert len(encoded.shards[0]) == 2
    shards = {index: b"".join(encoded.shards[index]) for index in (1, 2)}
    assert len(shards[1]) == compute_shard_bytes(len(data), 2) == STRIPE_BYTES // 2 + 2
    assert decode_blob(encoded.header, shards) == data


def test_the_slow_kernel_gives_the_same_blob_id() -> None:
    data = random.Random(5).randbytes(5000)
    slow = encode_blob(data, num_data=5, num_shards=12, leaf_bytes=1024, kernel=NumpyKernel())
    assert slow.blob == encode_blob(data, num_data=5, num_shards=12, leaf_bytes=1024).blob


def test_the_id_binds_every_field() -> None:
    header, _ = encode(bytes(range(100)))
    others = [
        dataclasses.replace(header, num_data=3),
        dataclasses.replace(header, leaf_bytes=128),
        dataclasses.replace(header, size_bytes=99),
        dataclasses.replace(header, shard_roots=header.shard_roots[::-1]),
    ]
    assert len({compute_blob_id(other) for other in [header, *others]}) == 5


def test_fewer_than_k_shards_say_so() -> None:
    header, shards = encode(b"hello")
    with pytest.raises(NotEnoughShards, match="1 good shards, expected 2"):
        decode_blob(header, {3: shards[3]})


def make_header(shards: list[bytes], size: int) -> BlobHeader:
    roots = tuple(ShardRoot(compute_root(shard, leaf_bytes=64)) for shard in shards)
    return BlobHeader(num_data=2, num_shards=4, leaf_bytes=64, size_bytes=size, shard_roots=roots)


def assert_inconsistent(header: BlobHeader, shards: list[bytes]) -> None:
    messages = set()
    for chosen in combinations(range(4), 2):
        with pytest.raises(InconsistentBlob) as caught:
            decode_blob(header, {index: shards[index] for index in chosen})
        assert caught.value.blob == compute_blob_id(header)
        messages.add(str(caught.value))
    assert len(messages) == 1


@pytest.mark.parametrize("bad", range(4))
def test_invalid_code_word_is_the_same_verdict_for_every_reader(bad: int) -> None:
    _, shards = encode(b"two readers, one blob")
    shards[bad] = bytes([shards[bad][0] ^ 1]) + shards[bad][1:]
    assert_inconsistent(make_header(shards, 21), shards)


def test_invalid_padding_is_the_same_verdict_for_every_reader() -> None:
    """A proper code word whose last byte is not part of the blob, and not zero."""
    _, shards = encode(b"abcdef")
    assert_inconsistent(make_header(shards, 5), shards)


@pytest.mark.parametrize("num_data", [1, 2, 4])
@pytest.mark.parametrize("size", [0, 1, 300])
def test_headers_round_trip(num_data: int, size: int) -> None:
    header, _ = encode(bytes(size), num_data, 4)
    assert decode_header(encode_header(header)) == header
    assert len(encode_header(header)) == 16 + 4 * 32


GOOD = encode_header(encode(b"hello")[0])


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "0 bytes"),
        (GOOD[:-1], "143 bytes, expected 144"),
        (GOOD + b"\0", "145 bytes, expected 144"),
        (b"\3" + GOOD[1:], "144 bytes, expected 174"),
        (b"\2" + GOOD[1:], "version 2, expected 1 or 3"),
        (GOOD[:1] + b"\2" + GOOD[2:], "matrix 2, expected 1"),
        (GOOD[:2] + b"\0" + GOOD[3:], "k 0"),
        (GOOD[:2] + b"\5" + GOOD[3:], "k 5, n 4"),
        (GOOD[:4] + (96).to_bytes(4, "big") + GOOD[8:], "leaves of 96 bytes"),
        (GOOD[:4] + (0).to_bytes(4, "big") + GOOD[8:], "leaves of 0 bytes"),
        (GOOD[:4] + (2**21).to_bytes(4, "big") + GOOD[8:], "leaves of 2097152 bytes"),
        (GOOD[:8] + (10**13 + 1).to_bytes(8, "big") + GOOD[16:], "at most 10000000000000"),
    ],
)
def test_invalid_headers_are_refused(data: bytes, reason: str) -> None:
    with pytest.raises(MalformedHeader, match=reason):
        decode_header(data)


@settings(max_examples=300, deadline=None)
@given(data=st.one_of(st.binary(max_size=200), st.binary(max_size=140).map(lambda tail: GOOD[:4] + tail)))
def test_decoding_a_header_is_total(data: bytes) -> None:
    try:
        header = decode_header(data)
    except MalformedHeader:
        return
    assert encode_header(header) == data
