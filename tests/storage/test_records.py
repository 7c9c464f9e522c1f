"""Byte layouts: round trips, and no damaged record passes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from da.core.types import BlobId, Epoch, Height, ShardIndex, Tier
from storage.core.errors import MalformedRecord
from storage.core.records import (
    ShardRecord,
    ShardTerms,
    decode_due_key,
    decode_key,
    decode_record,
    decode_terms,
    encode_due_key,
    encode_key,
    encode_record,
    encode_terms,
)

u64 = st.integers(0, 2**64 - 1)
TERMS = ShardTerms(
    shard=ShardIndex(3),
    tier=Tier.HOT,
    epoch=Epoch(7),
    expiry=Height(1_000),
    shard_bytes=12_345,
    header=b"header bytes",
)


def test_known_answer_of_the_terms_file() -> None:
    encoded = encode_terms(TERMS)
    assert (
        encoded.hex()
        == (
            "415243485445524d"  # magic
            "01"  # version
            "01"  # tier
            "0003"  # shard
            "0000000000000007"  # epoch
            "00000000000003e8"  # expiry
            "0000000000003039"  # shard bytes
            "0000000c" + b"header bytes".hex() + encoded[-4:].hex()
        )
    )


@given(st.integers(0, 63), st.sampled_from(Tier), u64, u64, u64, st.binary(max_size=3_000))
def test_terms_round_trip(shard: int, tier: Tier, epoch: int, expiry: int, shard_bytes: int, header: bytes) -> None:
    terms = ShardTerms(
        shard=ShardIndex(shard),
        tier=tier,
        epoch=Epoch(epoch),
        expiry=Height(expiry),
        shard_bytes=shard_bytes,
        header=header,
    )
    assert decode_terms(encode_terms(terms)) == terms


def test_invalid_terms_cut_anywhere() -> None:
    encoded = encode_terms(TERMS)
    for stop in range(len(encoded)):
        with pytest.raises(MalformedRecord):
            decode_terms(encoded[:stop])
    with pytest.raises(MalformedRecord):
        decode_terms(encoded + b"\0")


def test_invalid_terms_with_one_flipped_bit() -> None:
    encoded = encode_terms(TERMS)
    for position in range(len(encoded)):
        damaged = bytearray(encoded)
        damaged[position] ^= 0x10
        with pytest.raises(MalformedRecord):
            decode_terms(bytes(damaged))


@given(st.sampled_from(Tier), u64, u64, u64, u64, u64)
def test_record_round_trip(tier: Tier, epoch: int, expiry: int, release: int, due: int, size: int) -> None:
    record = ShardRecord(
        tier=tier,
        epoch=Epoch(epoch),
        expiry=Height(expiry),
        release=Height(release),
        due=Height(due),
        shard_bytes=size,
    )
    assert decode_record(encode_record(record)) == record


@pytest.mark.parametrize("data", [b"", b"\x01" * 40, b"\x01" * 42, b"\x09" + b"\0" * 40])
def test_invalid_record(data: bytes) -> None:
    with pytest.raises(MalformedRecord):
        decode_record(data)


@given(st.binary(min_size=32, max_size=32), st.integers(0, 65_535), u64)
def test_keys_round_trip(blob: bytes, shard: int, due: int) -> None:
    assert decode_key(encode_key(BlobId(blob), ShardIndex(shard))) == (blob, shard)
    assert decode_due_key(encode_due_key(Height(due), BlobId(blob), ShardIndex(shard))) == (due, blob, shard)


@pytest.mark.parametrize("decode", [decode_key, decode_due_key])
def test_invalid_keys(decode: object) -> None:
    assert callable(decode)
    with pytest.raises(MalformedRecord):
        decode(b"short")
