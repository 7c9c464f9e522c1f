"""Shelves of cold shards: append segments on a disk, and a bucket of a real S3 server."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import obstore
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from obstore.store import MemoryStore, S3Store

from da.core.errors import NotAFile
from da.core.types import BlobId, ShardIndex
from storage.core.errors import DiskFull, MalformedRecord, ShelfUnavailable
from storage.core.segments import Kind, SegmentRecord, decode_prefix, encode_prefix
from storage.node.bucket import BucketShelf, open_bucket
from storage.node.segments import SegmentShelf
from storage.node.shelf import Shelf

SHARD = ShardIndex(3)


def name(number: int) -> BlobId:
    return BlobId(bytes([number]) * 32)


def read_all(shelf: Shelf, blob: BlobId) -> bytes:
    reader = shelf.open(blob, SHARD)
    try:
        parts, at = [], 0
        while chunk := reader.read(at, 7_000):
            parts.append(chunk)
            at += len(chunk)
        return b"".join(parts)
    finally:
        reader.close()


@pytest.fixture
def put(tmp_path: Path) -> Callable[[Shelf, int, bytes], None]:
    def put_(shelf: Shelf, number: int, body: bytes) -> None:
        path = tmp_path / "body"
        path.write_bytes(body)
        shelf.put(name(number), SHARD, path)

    return put_


@pytest.fixture(
    params=["segments", "memory", pytest.param("s3", marks=[pytest.mark.integration, pytest.mark.timeout(1_000)])]
)
def shelf(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shelf]:
    if request.param == "segments":
        yield SegmentShelf(tmp_path / "cold", segment_bytes=50_000)
    elif request.param == "memory":
        yield BucketShelf(MemoryStore())
    else:
        server = request.getfixturevalue("s3_server")
        yield open_bucket(f"s3://{server.make_bucket()}/cold", config=server.config)


def test_a_shelf_keeps_what_it_is_given(shelf: Shelf, put: Any) -> None:
    bodies = {number: os.urandom(size) for number, size in enumerate([0, 1, 30_000, 30_000, 120_000])}
    for number, body in bodies.items():
        put(shelf, number, body)
    for number, body in bodies.items():
        assert shelf.get_bytes(name(number), SHARD) == len(body)
        assert read_all(shelf, name(number)) == body
    reader = shelf.open(name(4), SHARD)
    assert reader.read(119_990, 100) == bodies[4][-10:]
    assert reader.read(120_000, 100) == b""
    reader.close()
    assert set(shelf.iterate_keys()) == {(name(number), SHARD) for number in bodies}
    put(shelf, 2, b"replaced")
    assert read_all(shelf, name(2)) == b"replaced"
    for number in (2, 3, 99):
        shelf.delete(name(number), SHARD)
    assert shelf.get_bytes(name(2), SHARD) is None
    with pytest.raises(FileNotFoundError):
        shelf.open(name(3), SHARD)
    assert {blob for blob, _ in shelf.iterate_keys()} == {name(0), name(1), name(4)}
    assert read_all(shelf, name(4)) == bodies[4]


def test_what_else_lies_in_the_bucket_is_left_alone() -> None:
    store = MemoryStore()
    obstore.put(store, "readme.txt", b"x")
    obstore.put(store, "zz" * 32 + ".1", b"x")
    assert list(BucketShelf(store).iterate_keys()) == []


def test_what_else_lies_beside_the_segments_is_left_alone(put: Any, tmp_path: Path) -> None:
    """A copy that a person made is no reason not to start; a pipe in the place of a segment is, and is named."""
    shelf = SegmentShelf(tmp_path / "cold")
    put(shelf, 1, b"kept")
    for other in ("00000001 (copy).seg", "old.seg", "²²²²²²²².seg"):
        (tmp_path / "cold" / other).write_bytes(b"x")
    shelf = SegmentShelf(tmp_path / "cold")
    assert read_all(shelf, name(1)) == b"kept"
    put(shelf, 2, b"more")
    os.mkfifo(tmp_path / "cold" / "00000009.seg")
    with pytest.raises(NotAFile, match=r"00000009.seg is a device, a pipe or a socket, expected a file; next: "):
        SegmentShelf(tmp_path / "cold")


def test_a_bucket_that_does_not_answer_is_no_empty_bucket() -> None:
    store = S3Store(
        "nowhere",
        config={"endpoint": "http://127.0.0.1:9", "region": "x", "skip_signature": True},
        client_options={"allow_http": True},
        retry_config={"max_retries": 0},
    )
    shelf = BucketShelf(store)
    with pytest.raises(ShelfUnavailable):
        shelf.get_bytes(name(1), SHARD)
    with pytest.raises(ShelfUnavailable):
        list(shelf.iterate_keys())
    with pytest.raises(ShelfUnavailable):
        shelf.open(name(1), SHARD)
    with pytest.raises(ShelfUnavailable):
        open_bucket("nonsense://x")


operations = st.lists(
    st.tuples(st.sampled_from(["put", "put", "delete", "open"]), st.integers(0, 4), st.integers(0, 4_000)), max_size=40
)


@settings(max_examples=40, deadline=None)
@given(operations)
def test_segments_hold_what_was_put_after_any_history(history: list[tuple[str, int, int]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        root, body = Path(directory) / "cold", Path(directory) / "body"
        shelf = SegmentShelf(root, segment_bytes=6_000)
        kept: dict[int, bytes] = {}
        for index, (operation, number, size) in enumerate(history):
            if operation == "put":
                body.write_bytes(bytes([index % 256]) * size)
                shelf.put(name(number), SHARD, body)
                kept[number] = body.read_bytes()
            elif operation == "delete":
                shelf.delete(name(number), SHARD)
                kept.pop(number, None)
            else:
                shelf = SegmentShelf(root, segment_bytes=6_000)
            assert set(shelf.iterate_keys()) == {(name(key), SHARD) for key in kept}
            for key, value in kept.items():
                assert read_all(shelf, name(key)) == value
        live = sum(len(value) + 56 for value in kept.values())
        assert shelf.get_disk_bytes() <= 2 * live + 2 * (6_000 + 4_056) + 56 * len(history)


def test_a_shard_stays_readable_while_its_segment_is_cleaned(tmp_path: Path, put: Any) -> None:
    shelf = SegmentShelf(tmp_path / "cold", segment_bytes=1_000)
    put(shelf, 1, b"a" * 2_000)
    reader = shelf.open(name(1), SHARD)
    put(shelf, 2, b"b" * 2_000)
    shelf.delete(name(1), SHARD)
    assert len(list((tmp_path / "cold").glob("*.seg"))) == 2, "the first segment is gone, the tombstone has its own"
    assert reader.read(0, 9_999) == b"a" * 2_000
    reader.close()


@pytest.mark.parametrize("cut", [1, 30, 56, 60, 1_000])
def test_a_record_that_was_cut_by_a_crash_is_left_out(tmp_path: Path, put: Any, cut: int) -> None:
    shelf = SegmentShelf(tmp_path / "cold")
    put(shelf, 1, b"a" * 500)
    put(shelf, 2, b"b" * 1_000)
    (segment,) = (tmp_path / "cold").glob("*.seg")
    os.truncate(segment, segment.stat().st_size - cut)
    shelf = SegmentShelf(tmp_path / "cold")
    assert set(shelf.iterate_keys()) == {(name(1), SHARD)}
    put(shelf, 2, b"c" * 10)
    shelf = SegmentShelf(tmp_path / "cold")
    assert (read_all(shelf, name(1)), read_all(shelf, name(2))) == (b"a" * 500, b"c" * 10)


def test_a_full_disk_leaves_the_segment_as_it_was(tmp_path: Path, put: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf = SegmentShelf(tmp_path / "cold")
    put(shelf, 1, b"a" * 500)
    before = shelf.get_disk_bytes()

    def fail(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fdatasync", fail)
    with pytest.raises(DiskFull):
        put(shelf, 2, b"b" * 500)
    monkeypatch.undo()
    (segment,) = (tmp_path / "cold").glob("*.seg")
    assert segment.stat().st_size == shelf.get_disk_bytes() == before
    assert shelf.get_bytes(name(2), SHARD) is None


@given(st.binary(max_size=80))
def test_strange_segment_records_are_refused(data: bytes) -> None:
    with pytest.raises(MalformedRecord):
        decode_prefix(data)


def test_the_segment_record_in_bytes() -> None:
    record = SegmentRecord(kind=Kind.SHARD, blob=name(7), shard=SHARD, body_bytes=9)
    encoded = encode_prefix(record)
    assert encoded[:10] == b"ARCHSEGM\x01\x01"
    assert decode_prefix(encoded) == record
