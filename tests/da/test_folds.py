"""The random linear check: folds commute with the code, and a shard off the code does not pass."""

from __future__ import annotations

import dataclasses
import random
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from da.codec import compute_shard_root, encode_blob
from da.core.blob import BlobHeader, check_has_folds, compute_blob_id, decode_header, encode_header
from da.core.errors import BadEncoding, FoldsMissing, MalformedHeader
from da.core.folds import FoldSeed, compute_expected_fold, compute_fold, compute_num_folds
from da.core.matrix import compute_recovery_rows, multiply_row
from da.folding import EncodingCheck, FoldBuilder, make_seed
from da.kernel import Kernel, NumpyKernel, open_bundled_isal


def encode(size: int, k: int = 2, n: int = 4) -> Any:
    return encode_blob(random.Random(size).randbytes(size), num_data=k, num_shards=n, leaf_bytes=1024)


def check(header: BlobHeader, index: int, shard: bytes) -> None:
    encoding = EncodingCheck(header, index)
    encoding.update(shard)
    encoding.finish()


@pytest.mark.parametrize("kernel", [open_bundled_isal(), NumpyKernel()], ids=lambda kernel: kernel.name)
@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_any_chunks_fold_like_the_plain_definition(kernel: Kernel, data: st.DataObject) -> None:
    size = data.draw(st.sampled_from([0, 1, 255, 4_096, 4_097, 40_000, 64 * 4_096 + 1, 300_000]))
    shard = random.Random(size).randbytes(size)
    seed = FoldSeed(data.draw(st.binary(max_size=4)), num_folds=data.draw(st.sampled_from([15, 20])))
    cuts = sorted(data.draw(st.lists(st.integers(0, size), max_size=4)))
    builder = FoldBuilder(seed, kernel=kernel)
    for start, stop in zip([0, *cuts], [*cuts, size], strict=True):
        builder.update(shard[start:stop])
    assert builder.finish() == compute_fold(seed, shard)


def test_every_factor_is_used_once() -> None:
    """No two groups of any levels share a byte, and a part of a group is that part of its rows."""
    seed = FoldSeed(b"x", num_folds=15)
    groups = [seed.get_part_factors(level, at, at + 48) for level in (1, 2, 3) for at in (0, 64, 128, 192)]
    groups += [seed.get_block_factors(at, at + 64) for at in (0, 64)]
    rows = [group[at : at + 16] for group in groups for at in range(0, len(group), 16)]
    assert len(set(rows)) == len(rows)
    whole = seed.get_block_factors(64, 128)
    assert seed.get_block_factors(70, 72) == b"".join(whole[at + 6 : at + 8] for at in range(0, len(whole), 64))


def test_more_blocks_than_one_call_takes() -> None:
    shard = random.Random(1).randbytes(130 * 4_096 + 5)
    seed = FoldSeed(b"x", num_folds=15)
    builder = FoldBuilder(seed)
    builder.update(shard)
    assert builder.finish() == compute_fold(seed, shard)


@pytest.mark.parametrize(("k", "n"), [(1, 3), (2, 4), (4, 6), (6, 16), (8, 20)])
def test_every_shard_of_a_good_blob_passes(k: int, n: int) -> None:
    encoded = encode(50_001 * k, k, n)
    assert [len(fold) for fold in encoded.header.folds] == [compute_num_folds(n)] * k
    for index, pieces in enumerate(encoded.shards):
        check(encoded.header, index, b"".join(pieces))
    assert decode_header(encode_header(encoded.header)) == encoded.header


@pytest.mark.parametrize("where", [0, 4_096, 49_999])
@pytest.mark.parametrize("index", range(4))
def test_invalid_one_altered_byte_is_off_the_code(index: int, where: int) -> None:
    """An encoder that alters one byte of one shard, and hashes and folds what it has, honestly."""
    encoded = encode(100_000)
    shards = [bytearray(b"".join(pieces)) for pieces in encoded.shards]
    shards[index][where] ^= 1
    roots = tuple(compute_shard_root(shard, leaf_bytes=1024) for shard in shards)
    header = dataclasses.replace(encoded.header, shard_roots=roots)
    seed = make_seed(header)
    header = dataclasses.replace(header, folds=tuple(compute_fold(seed, bytes(shard)) for shard in shards[:2]))
    refused = set()
    for seat, shard in enumerate(shards):
        try:
            check(header, seat, bytes(shard))
        except BadEncoding as error:
            refused.add(error.shard)
    # The data shards agree with their own folds; parity that belongs to other data does not.
    assert refused == ({2, 3} if index < 2 else {index})


@pytest.mark.parametrize("pair", list(combinations(range(4), 2)), ids=str)
def test_invalid_folds_that_fit_two_shards_fit_no_third(pair: tuple[int, int]) -> None:
    """Whatever folds a liar writes, at most k shards pass that are no code word together."""
    shards = [random.Random(index).randbytes(9000) for index in range(4)]
    roots = tuple(compute_shard_root(shard, leaf_bytes=1024) for shard in shards)
    header = BlobHeader(num_data=2, num_shards=4, leaf_bytes=1024, size_bytes=18_000, shard_roots=roots)
    seed = make_seed(header)
    folds = [compute_fold(seed, shard) for shard in shards]
    rows = compute_recovery_rows(2, 4, pair, (0, 1))
    claimed = [multiply_row(row, [folds[index] for index in pair]) for row in rows]
    passing = [index for index in range(4) if compute_expected_fold(claimed, index, num_shards=4) == folds[index]]
    assert passing == list(pair)


def test_folds_follow_the_roots() -> None:
    """Coefficients of one blob are useless for another: an encoder must choose the shards first."""
    first, second = encode(20_000), encode(20_001)
    assert make_seed(first.header).get_block_factors(0, 1) != make_seed(second.header).get_block_factors(0, 1)
    assert compute_blob_id(first.header) != compute_blob_id(dataclasses.replace(first.header, folds=()))


def test_small_shards_have_no_folds_and_long_ones_must() -> None:
    small, long = encode(8192), encode(8193)
    assert small.header.folds == ()
    check_has_folds(small.header)
    check(small.header, 0, b"anything: a reader finds it")
    check_has_folds(long.header)
    with pytest.raises(FoldsMissing, match="shards of 4097 bytes without folds, at most 4096"):
        check_has_folds(dataclasses.replace(long.header, folds=()))
    check_has_folds(encode(100_000, 1, 1).header)  # one copy: nothing can be off the code


def test_invalid_header_with_folds_cut_or_longer() -> None:
    good = encode_header(encode(20_000).header)
    for data in (good[:-1], good + b"\0", b"\1" + good[1:], b"\2" + good[1:]):
        with pytest.raises(MalformedHeader):
            decode_header(data)
