"""The generator matrix: equal to reedsolo's, and never singular (cases 72)."""

from __future__ import annotations

import random
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reedsolo import RSCodec

from da.codec import decode_blob, encode_blob, recover_shards
from da.core.errors import InvalidScheme, SingularMatrix
from da.core.matrix import (
    compute_generator_rows,
    compute_parity_rows,
    compute_recovery_rows,
    invert,
    multiplication_tables,
    multiply_row,
)
from da.core.scheme import compute_scheme


def encode(data: bytes, num_data: int, num_shards: int) -> tuple[object, list[bytes]]:
    encoded = encode_blob(data, num_data=num_data, num_shards=num_shards, leaf_bytes=64)
    return encoded.header, [b"".join(pieces) for pieces in encoded.shards]


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_shards_equal_reedsolo_column_by_column(data: st.DataObject) -> None:
    num_shards = data.draw(st.integers(1, 64))
    num_data = data.draw(st.integers(1, num_shards))
    blob = data.draw(st.binary(min_size=1, max_size=5 * num_data))
    _, shards = encode(blob, num_data, num_shards)
    padded = blob.ljust(len(shards[0]) * num_data, b"\0")
    assert b"".join(shards[:num_data]) == padded
    codec = (
        RSCodec(num_shards - num_data, nsize=num_shards, fcr=0, prim=0x11D, generator=2)
        if num_data < num_shards
        else None
    )
    for column in range(len(shards[0])):
        word = bytes(shard[column] for shard in shards)
        assert word == (bytes(codec.encode(word[:num_data])) if codec else word[:num_data])


@pytest.mark.parametrize(("num_data", "num_shards"), [(1, 1), (1, 3), (2, 4), (4, 6), (8, 12), (3, 5), (5, 8), (5, 10)])
def test_any_k_of_n_decode(num_data: int, num_shards: int) -> None:
    blob = random.Random(num_shards).randbytes(num_data * 3 - 1)
    header, shards = encode(blob, num_data, num_shards)
    for chosen in combinations(range(num_shards), num_data):
        assert decode_blob(header, {index: shards[index] for index in chosen}) == blob


@pytest.mark.parametrize(("num_data", "num_shards"), [(4, 6), (8, 12), (10, 15), (10, 14)])
def test_no_choice_of_shards_is_singular(num_data: int, num_shards: int) -> None:
    """ISA-L's own Vandermonde matrix is, for 10 of the 3,003 choices at 10 of 15."""
    generator = compute_generator_rows(num_data, num_shards)
    identity = generator[:num_data]
    for chosen in combinations(range(num_shards), num_data):
        rows = [generator[index] for index in chosen]
        inverse = invert(rows)
        assert tuple(multiply_row(row, inverse) for row in rows) == identity


@pytest.mark.parametrize(("num_data", "num_shards"), [(16, 32), (24, 64), (64, 64), (22, 64), (1, 64)])
def test_large_codes_decode_from_random_choices(num_data: int, num_shards: int) -> None:
    rng = random.Random(num_data)
    blob = rng.randbytes(num_data * 7 + 1)
    header, shards = encode(blob, num_data, num_shards)
    for _ in range(25):
        chosen = rng.sample(range(num_shards), num_data)
        assert decode_blob(header, {index: shards[index] for index in chosen}) == blob


def test_lost_shards_are_rebuilt_exactly() -> None:
    header, shards = encode(random.Random(1).randbytes(1001), 4, 7)
    for kept in combinations(range(7), 4):
        lost = [index for index in range(7) if index not in kept]
        rebuilt = recover_shards(header, {index: shards[index] for index in kept}, lost)
        assert [bytes(shard) for shard in rebuilt] == [shards[index] for index in lost]


def test_the_field_is_reedsolos() -> None:
    tables = multiplication_tables()
    assert tables[2][128] == 0x1D
    for a in range(1, 256):
        assert sorted(tables[a]) == list(range(256))
        assert tables[a][1] == a
    assert all(tables[a][b] == tables[b][a] for a in range(256) for b in range(a))


def test_invalid_singular_matrix_is_an_error() -> None:
    with pytest.raises(SingularMatrix, match="column 1"):
        invert([bytes((1, 2)), bytes((1, 2))])


@pytest.mark.parametrize(("num_data", "num_shards"), [(0, 1), (2, 1), (1, 65), (-1, 3)])
def test_invalid_code_sizes_are_refused(num_data: int, num_shards: int) -> None:
    with pytest.raises(InvalidScheme):
        compute_parity_rows(num_data, num_shards)


@pytest.mark.parametrize("present", [(0,), (0, 0), (0, 4), (0, 1, 2)])
def test_invalid_choice_of_shards_is_refused(present: tuple[int, ...]) -> None:
    with pytest.raises(InvalidScheme):
        compute_recovery_rows(2, 4, present, (0,))


def test_threads_get_the_same_matrix() -> None:
    """Reedsolo's codecs share global tables; ours must not."""
    sizes = [(k, n) for n in range(4, 40, 5) for k in range(2, n, 6)]
    expected = [compute_parity_rows.__wrapped__(*size) for size in sizes]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(6) as pool:
            runs = list(pool.map(lambda _: [compute_parity_rows.__wrapped__(*size) for size in sizes], range(12)))
    finally:
        sys.setswitchinterval(interval)
    assert all(run == expected for run in runs)


def test_every_parity_matrix_of_a_committee_is_reedsolos() -> None:
    for num_seats in range(1, 65):
        scheme = compute_scheme(num_seats)
        num_parity = num_seats - scheme.num_data
        if not num_parity:
            continue
        codec = RSCodec(num_parity, nsize=num_seats, fcr=0)
        rows = compute_parity_rows(scheme.num_data, num_seats)
        for column in range(scheme.num_data):
            unit = bytes(int(index == column) for index in range(scheme.num_data))
            assert bytes(codec.encode(unit))[scheme.num_data :] == bytes(row[column] for row in rows)
