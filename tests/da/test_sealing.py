"""Sealed bytes open with their key, whole and in order, and with nothing else."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from da import sealing
from da.core.errors import MalformedSecret, SealBroken
from da.sealing import (
    SealedSource,
    compute_sealed_bytes,
    create_secret,
    load_secret,
    seal,
    unseal,
    unseal_file,
)
from da.slabs import MemorySource

KEY = bytes(range(32))
SIZES = [0, 1, 99, 100, 101, 200, 1000]


@pytest.fixture(autouse=True)
def small_segments() -> Any:
    with mock.patch.object(sealing, "SEGMENT_BYTES", 100):
        yield


@pytest.mark.parametrize("size", SIZES)
def test_round_trip(size: int) -> None:
    data = random.Random(size).randbytes(size)
    sealed = seal(data, KEY)
    assert len(sealed) == compute_sealed_bytes(size)
    assert unseal(sealed, KEY) == data
    assert seal(data, KEY) == sealed  # so a put that was cut goes on
    other = seal(data[:-1] + b"\xff\xfe", KEY)
    assert other[4:20] != sealed[4:20]  # other bytes, another salt, hence another key


@given(size=st.sampled_from(SIZES), data=st.data())
@settings(max_examples=40, deadline=None)
def test_any_range_reads_like_the_whole(size: int, data: st.DataObject) -> None:
    source = SealedSource(MemorySource(random.Random(size).randbytes(size)), KEY)
    whole = bytearray(source.size_bytes)
    source.read_into(0, memoryview(whole))
    start = data.draw(st.integers(0, len(whole)))
    part = bytearray(data.draw(st.integers(0, len(whole) - start)))
    source.read_into(start, memoryview(part))
    assert part == whole[start : start + len(part)]


def test_invalid_flipped_bit_anywhere() -> None:
    sealed = seal(bytes(250), KEY)
    for at in range(len(sealed)):
        broken = bytearray(sealed)
        broken[at] ^= 1
        with pytest.raises(SealBroken):
            unseal(broken, KEY)


def test_invalid_cut_swapped_or_foreign() -> None:
    sealed = seal(bytes(300), KEY)
    segments = [sealed[28 + at : 28 + at + 116] for at in (0, 116, 232)]
    for broken, reason in [
        (sealed[:-1], "375 bytes, expected 376"),
        (sealed[:28] + segments[1] + segments[0] + segments[2], "segment 0 does not open"),
        (sealed[:260], "260 bytes, expected 376"),
        (b"", "0 bytes are too few"),
        (bytes(376), "the blob is not sealed"),
    ]:
        with pytest.raises(SealBroken, match=reason):
            unseal(broken, KEY)
    with pytest.raises(SealBroken, match="another key"):
        unseal(sealed, bytes(32))


def test_known_bytes() -> None:
    """The layout is a format: these bytes change only with a new magic."""
    source = SealedSource(MemorySource(b"abc"), KEY)
    sealed = bytearray(source.size_bytes)
    source.read_into(0, memoryview(sealed))
    assert sealed[:28].hex() == "41475331" + "f5e2c3c2f4329f10fd083327bfb0ce03" + "0000000000000003"
    assert sealed[28:].hex() == "57691afbf51ebc9d7cbc7c770fc500a364b30b"


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    data = random.Random(1).randbytes(950)
    sealed = bytearray(seal(data, KEY))
    unseal_file(MemorySource(sealed), tmp_path / "good", KEY)
    assert (tmp_path / "good").read_bytes() == data
    sealed[-1] ^= 1
    with pytest.raises(SealBroken, match="segment 9"):
        unseal_file(MemorySource(sealed), tmp_path / "bad", KEY)
    assert [path.name for path in tmp_path.iterdir()] == ["good"]


def test_key_files(tmp_path: Path) -> None:
    path = tmp_path / "key"
    key = create_secret(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert load_secret(path) == key
    with pytest.raises(FileExistsError):
        create_secret(path)
    path.write_text("zz")
    with pytest.raises(MalformedSecret, match="is not hex"):
        load_secret(path)
    path.write_text("00ff")
    with pytest.raises(MalformedSecret, match="has 2 bytes, expected 32"):
        load_secret(path)
    path.chmod(0o640)
    with pytest.raises(MalformedSecret, match="others may read"):
        load_secret(path)
