"""Archives: deltas, planes, compression; anything broken is refused."""

from __future__ import annotations

import io
from typing import BinaryIO

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from storage.archiving import Chain, is_archive, iterate_blocks, read_archive, read_header, write_archive
from storage.core.delta import (
    HEADER_BYTES,
    MAX_DEPTH,
    NO_BASE,
    ArchiveHeader,
    decode_archive_header,
    encode_archive_header,
    plan_base,
)
from storage.core.errors import MalformedArchive
from storage.planes import BlockCoder


def archive(data: bytes, *, width: int = 4, base: Chain | None = None) -> io.BytesIO:
    target = io.BytesIO()
    write_archive(io.BytesIO(data), target, width=width, base=base)
    return target


def restore(*files: BinaryIO) -> bytes:
    target = io.BytesIO()
    read_archive(files, target)
    return target.getvalue()


@settings(max_examples=60, deadline=None)
@given(data=st.binary(max_size=300), base=st.binary(max_size=300), width=st.sampled_from([1, 2, 4, 8]))
def test_any_block_comes_back(data: bytes, base: bytes, width: int) -> None:
    coder = BlockCoder(width)
    assert coder.decode(coder.encode(data, base), base, len(data)) == data


@pytest.mark.parametrize("sizes", [(0, 0), (1, 0), (0, 9), (20_000_000, 17_000_001), (3, 9_000_000)])
def test_bases_of_another_size(sizes: tuple[int, int]) -> None:
    rng = np.random.default_rng(1)
    first, second = (rng.integers(0, 4, size, dtype=np.uint8).tobytes() for size in sizes)
    whole = archive(first)
    delta = archive(second, base=Chain(files=(whole,), blob=b"b" * 32, depth=0))
    assert restore(whole, delta) == second
    assert read_header(delta).base == b"b" * 32


def test_checkpoints_of_a_run_shrink_and_a_chain_has_four_deltas_at_most() -> None:
    """Weights that move a little each time, bf16 and fp32: the gain of DA.md."""
    rng = np.random.default_rng(2)
    weights = rng.standard_normal(500_000).astype(np.float32)
    files: list[io.BytesIO] = []
    gains = []
    for number in range(MAX_DEPTH + 1):
        weights = weights * np.float32(1 + 1e-6) + rng.standard_normal(500_000).astype(np.float32) * np.float32(1e-4)
        data = (weights.view(np.uint32) >> 16).astype(np.uint16).tobytes()
        base = Chain(files=tuple(files), blob=bytes([number]) * 32, depth=number - 1) if files else None
        assert plan_base(number - 1 if files else None) == number
        files.append(archive(data, width=2, base=base))
        gains.append(len(data) / len(files[-1].getvalue()))
        assert restore(*files) == data
    assert gains[0] < 1.6 < 2.0 < min(gains[1:])
    assert plan_base(MAX_DEPTH) == 0


def test_a_wrong_base_is_noticed_and_never_given_out_as_good() -> None:
    first, second = b"a" * 10_000, b"b" * 10_000
    whole, other = archive(first), archive(b"c" * 10_000)
    delta = archive(second, base=Chain(files=(whole,), blob=b"b" * 32, depth=0))
    with pytest.raises(MalformedArchive, match="is the base right"):
        restore(other, delta)
    with pytest.raises(MalformedArchive, match="has depth 1"):
        restore(delta)


@settings(max_examples=100, deadline=None)
@given(at=st.integers(0, 10_000), value=st.integers(1, 255))
@example(at=96, value=176)  # a frame that says it holds exabytes
def test_any_changed_byte_is_refused(at: int, value: int) -> None:
    good = archive(b"0123456789" * 500).getvalue()
    bad = bytearray(good)
    bad[at % len(bad)] ^= value
    try:
        got = restore(io.BytesIO(bytes(bad)))
    except MalformedArchive:
        return
    # zstd frames have bits that mean nothing; the contents are what counts
    assert got == b"0123456789" * 500


def test_any_cut_is_refused() -> None:
    good = archive(b"0123456789" * 500).getvalue()
    for stop in (*range(0, 100, 7), len(good) - 1):
        with pytest.raises(MalformedArchive):
            restore(io.BytesIO(good[:stop]))


@given(st.binary(max_size=120))
def test_strange_headers_are_refused_by_name(data: bytes) -> None:
    assert not is_archive(data)
    with pytest.raises(MalformedArchive):
        decode_archive_header(data)


def test_the_header_in_bytes() -> None:
    header = ArchiveHeader(width=2, depth=0, base=NO_BASE, size_bytes=5, digest=b"d" * 32)
    encoded = encode_archive_header(header)
    assert len(encoded) == HEADER_BYTES
    assert encoded[:12] == b"ARCHDELT\x01\x02\x00\x00"
    assert decode_archive_header(encoded) == header
    huge = bytearray(encoded)
    huge[84:88] = b"\xff\xff\xff\xff"
    with pytest.raises(MalformedArchive, match="blocks of"):
        decode_archive_header(bytes(huge))


def test_blocks_can_be_had_one_by_one() -> None:
    data = bytes(20_000_000)
    assert b"".join(iterate_blocks([archive(data)])) == data
