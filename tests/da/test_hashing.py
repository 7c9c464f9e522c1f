"""Known answers of every domain tag; a changed answer is a changed format."""

from __future__ import annotations

import json
from pathlib import Path

import blake3
import pytest

from da.core.hashing import Tag, compute_digest, compute_hash, compute_stream_hash

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "hash_tags.json").read_text())
MESSAGE = bytes(range(100))


@pytest.mark.parametrize("tag", Tag)
def test_known_answer(tag: Tag) -> None:
    """For a new tag, add the digest of bytes 0..99 to the vectors."""
    assert VECTORS["tags"].get(tag.value) == compute_hash(tag, MESSAGE).hex()


def test_no_vector_is_left_behind() -> None:
    assert set(VECTORS["tags"]) == {tag.value for tag in Tag}


def test_domains_differ() -> None:
    digests = {compute_hash(tag, MESSAGE) for tag in Tag} | {compute_digest(MESSAGE)}
    assert len(digests) == len(Tag) + 1


def test_parts_are_joined() -> None:
    whole = compute_hash(Tag.BLOB, MESSAGE)
    assert compute_hash(Tag.BLOB, MESSAGE[:40], MESSAGE[40:]) == whole
    assert compute_stream_hash(Tag.BLOB, [MESSAGE[:1], MESSAGE[1:]]) == whole
    assert compute_stream_hash(Tag.BLOB, [MESSAGE], num_bytes=64)[:32] == whole


def test_the_plain_digest_is_blake3_of_its_publication() -> None:
    """The empty input's digest of the BLAKE3 test vectors."""
    assert compute_digest(b"").hex() == "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"
    assert compute_digest(MESSAGE) == blake3.blake3(MESSAGE).digest()
