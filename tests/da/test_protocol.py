"""What travels between client and node: round trips, and total decoders."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from da.codec import encode_blob
from da.core.errors import Malformed, MalformedHeader, MalformedMessage, MalformedReceipt
from da.core.types import BlobId, Epoch, Height, ShardIndex, Tier
from da.protocol import (
    BLOB_HEADER_FIELD,
    STATUS_OF_REFUSAL,
    PutRequest,
    Refusal,
    decode_blob_id,
    decode_put,
    decode_receipt,
    decode_refusal,
    decode_seat,
    encode_put,
    encode_receipt,
    encode_refusal,
    header_path,
    shard_path,
)
from da.signing import sign_receipt

ENCODED = encode_blob(b"payload", num_data=2, num_shards=4, leaf_bytes=1024)
REQUEST = PutRequest(
    blob=ENCODED.blob,
    seat=ShardIndex(3),
    epoch=Epoch(2**64 - 1),
    tier=Tier.HOT,
    expiry=Height(12),
    header=ENCODED.header,
)
QUERY = {"epoch": str(2**64 - 1), "tier": "1", "expiry": "12"}
FIELD = encode_put(REQUEST)[1][BLOB_HEADER_FIELD]
GOOD: dict[str, Any] = {"blob": ENCODED.blob.hex(), "seat": "3", "query": QUERY, "header": FIELD}


def test_a_put_round_trips() -> None:
    path, _ = encode_put(REQUEST)
    assert path == f"/v1/blobs/{ENCODED.blob.hex()}/shards/3?epoch={2**64 - 1}&tier=1&expiry=12"
    assert decode_put(**GOOD) == REQUEST
    assert len(FIELD) <= 8190 - len(BLOB_HEADER_FIELD)


def test_paths() -> None:
    assert shard_path(BlobId(bytes(32)), 5) == f"/v1/blobs/{'00' * 32}/shards/5"
    assert header_path(BlobId(bytes(32))) == f"/v1/blobs/{'00' * 32}/header"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"blob": "00"}, "1 bytes, expected 32"),
        ({"blob": "zz" * 32}, "not hex"),
        ({"blob": "00" * 32}, "header names blob"),
        ({"seat": "4"}, "seat 4 of a blob with 4 shards"),
        ({"seat": "64"}, "seat 64, at most 63"),
        ({"seat": "-1"}, "no number"),
        ({"seat": "\u0663"}, "no number"),
        ({"header": None}, "no X-Archipelago-Blob-Header"),
        ({"query": QUERY | {"tier": "3"}}, "tier 3, at most 2"),
        ({"query": QUERY | {"epoch": "1" * 21}}, "no number"),
        ({"query": QUERY | {"expiry": str(2**64)}}, "at most"),
        ({"query": {}}, "missing"),
    ],
)
def test_invalid_puts_are_refused(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(MalformedMessage, match=reason):
        decode_put(**(GOOD | change))


def test_invalid_header_in_a_put() -> None:
    with pytest.raises(MalformedHeader):
        decode_put(**(GOOD | {"header": "00" * 16}))


def test_receipts_round_trip(fakes: Any) -> None:
    receipt = sign_receipt(fakes.make_key(2), fakes.make_terms(), ShardIndex(2))
    assert decode_receipt(encode_receipt(receipt)) == receipt


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=6,
)
near_receipts = st.fixed_dictionaries({"seat": json_values, "key": json_values, "signature": json_values})


@settings(max_examples=300, deadline=None)
@given(
    body=st.one_of(st.binary(max_size=100), st.one_of(json_values, near_receipts).map(lambda v: json.dumps(v).encode()))
)
def test_decoding_answers_is_total(body: bytes) -> None:
    with pytest.raises(MalformedReceipt):
        decode_receipt(body)
    assert decode_refusal(500, body).startswith("500")


def test_invalid_deep_json_is_a_malformed_receipt() -> None:
    with pytest.raises(MalformedReceipt):
        decode_receipt(b"[" * 8000)


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=70))
def test_decoding_parts_of_a_path_is_total(text: str) -> None:
    for decode in (decode_blob_id, decode_seat):
        try:
            decode(text)
        except Malformed:
            continue


def test_refusals_are_readable() -> None:
    body = encode_refusal(Refusal.FULL, "free 10 bytes, need 20")
    assert decode_refusal(507, body) == "507 Full: free 10 bytes, need 20"
    assert decode_refusal(502, b"<html>") == "502 without a readable reason"
    assert set(STATUS_OF_REFUSAL) == set(Refusal)
