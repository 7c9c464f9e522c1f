"""Many blobs under one signature: certificates that stand alone, and refusals that name a reason."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import AsyncIterator
from typing import Any
from unittest import mock

import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st

from da import batch as batch_module
from da import gathering
from da.batch import decode_batch, encode_batch, encode_small_blobs, split_batches
from da.client import AsyncBlobClient
from da.codec import encode_blob
from da.core.certificate import MAX_CERTIFICATE_BYTES, decode_certificate, encode_certificate, verify_certificate
from da.core.errors import (
    BadBatchPath,
    BlobTooLarge,
    FaultKind,
    ForgedSignature,
    InvalidCertificate,
    MalformedCertificate,
    MalformedHeader,
    MalformedMessage,
    NotEnoughReceipts,
    NotEnoughSignatures,
)
from da.core.merkle import compute_num_siblings, compute_path_top, compute_paths, compute_top
from da.core.receipt import compute_receipt_leaf
from da.core.scheme import compute_scheme
from da.core.types import BatchPlace, Certificate, Height, ShardIndex, Tier
from da.protocol import Refusal
from da.signing import sign_batch

BLOBS = [random.Random(index).randbytes(index * 37 % 5000) for index in range(40)]


@pytest.fixture
async def client() -> AsyncIterator[AsyncBlobClient]:
    with mock.patch.object(gathering, "GRACE_SECONDS", 0.3):
        async with AsyncBlobClient(deadline_seconds=5.0) as client:
            yield client


@pytest.fixture
def disperse(client: AsyncBlobClient, fakes: Any) -> Any:
    async def run(nodes: Any, blobs: list[bytes]) -> Any:
        return await client.disperse_batch(
            blobs, committee=nodes.committee, genesis_hash=fakes.GENESIS, tier=Tier.HOT, expiry=fakes.EXPIRY
        )

    return run


@pytest.fixture(scope="module")
def certify(fakes: Any) -> Any:
    """Return a function: the certificate of blob ``index`` of a batch, signed by ``seats``."""

    def make(index: int, num_blobs: int, seats: tuple[int, ...] = (0, 1, 2)) -> Certificate:
        terms = [fakes.make_terms(blob=number.to_bytes(32, "big")) for number in range(num_blobs)]
        paths = compute_paths([compute_receipt_leaf(each) for each in terms])
        return Certificate(
            terms=terms[index],
            signatures=tuple(
                (ShardIndex(seat), sign_batch(fakes.make_key(seat), terms, ShardIndex(seat)).signature)
                for seat in seats
            ),
            batch=BatchPlace(index=index, num_blobs=num_blobs, siblings=paths[index]),
        )

    return make


@pytest.fixture(scope="module")
def verify(fakes: Any) -> Any:
    def check(certificate: Certificate) -> None:
        verify_certificate(certificate, fakes.make_committee(4), genesis_hash=fakes.GENESIS, height=Height(10))

    return check


@pytest.mark.parametrize("num_blobs", [1, 2, 3, 5, 8, 13])
def test_every_blob_of_a_batch_is_certified(certify: Any, verify: Any, num_blobs: int) -> None:
    for index in range(num_blobs):
        certificate = certify(index, num_blobs)
        verify(certificate)
        encoded = encode_certificate(certificate)
        assert len(encoded) <= MAX_CERTIFICATE_BYTES
        assert decode_certificate(encoded) == certificate


@given(num_nodes=st.integers(1, 300))
@settings(max_examples=40, deadline=None)
def test_paths_lead_to_the_top(num_nodes: int) -> None:
    hashes = [number.to_bytes(32, "big") for number in range(num_nodes)]
    top = compute_top(hashes)
    for index, path in enumerate(compute_paths(hashes)):
        assert len(path) == compute_num_siblings(index, num_nodes)
        assert compute_path_top(hashes[index], index, num_nodes, path) == top


def test_invalid_places(certify: Any, verify: Any) -> None:
    good = certify(2, 5)
    assert good.batch is not None

    def at(**changes: Any) -> Certificate:
        return dataclasses.replace(good, batch=dataclasses.replace(good.batch, **changes))

    with pytest.raises(ForgedSignature):
        verify(at(index=3))
    with pytest.raises(ForgedSignature):
        verify(at(num_blobs=6))
    with pytest.raises(ForgedSignature):
        verify(dataclasses.replace(good, terms=dataclasses.replace(good.terms, blob=bytes(31) + b"\3")))
    with pytest.raises(ForgedSignature):
        verify(dataclasses.replace(good, batch=None))
    with pytest.raises(NotEnoughSignatures):
        verify(certify(2, 5, seats=(0, 1)))
    for bad in (at(siblings=good.batch.siblings[:-1]), at(num_blobs=4097), at(index=5)):
        with pytest.raises(BadBatchPath):
            verify(bad)
        with pytest.raises(MalformedCertificate):
            encode_certificate(bad)


@pytest.mark.parametrize("flip", range(0, 106 + 3 * 32 + 3 * 64, 7))
def test_invalid_encoding_with_one_flipped_bit(certify: Any, verify: Any, flip: int) -> None:
    encoded = bytearray(encode_certificate(certify(2, 5)))
    encoded[flip] ^= 1
    with pytest.raises((MalformedCertificate, InvalidCertificate)):
        verify(decode_certificate(bytes(encoded)))


def test_small_blobs_have_the_ids_of_blobs_alone() -> None:
    blobs = [*BLOBS, random.Random(9).randbytes(60_000)]
    for small, data in zip(encode_small_blobs(blobs, compute_scheme(4), leaf_bytes=1024), blobs, strict=True):
        alone = encode_blob(data, num_data=2, num_shards=4, leaf_bytes=1024)
        assert small.blob == alone.blob
        assert [bytes(shard) for shard in small.shards] == [b"".join(pieces) for pieces in alone.shards]


def test_bodies_round_trip_and_decoding_is_total() -> None:
    coded = encode_small_blobs(BLOBS[:7], compute_scheme(4), leaf_bytes=1024)
    body = encode_batch(coded, 3)
    entries = decode_batch(body)
    assert [(entry.blob, bytes(entry.shard)) for entry in entries] == [
        (small.blob, bytes(small.shards[3])) for small in coded
    ]
    for cut in (*range(0, 200), *range(200, len(body), 97)):
        with pytest.raises((MalformedMessage, MalformedHeader)):
            decode_batch(body[:cut])
    for bad, reason in [
        (body + b"\0", "1 bytes after"),
        (bytes(4), "batch of 0 blobs"),
        ((4097).to_bytes(4, "big"), "batch of 4097"),
        ((2).to_bytes(4, "big") + 2 * encode_batch(coded[1:2], 0)[4:], "stands twice"),
    ]:
        with pytest.raises(MalformedMessage, match=reason):
            decode_batch(bad)


def test_batches_split_in_order() -> None:
    with (
        mock.patch.object(batch_module, "CLIENT_BATCH_BLOBS", 3),
        mock.patch.object(batch_module, "CLIENT_BATCH_BYTES", 10),
    ):
        assert split_batches([b"a"] * 4) == [[b"a"] * 3, [b"a"]]
        assert split_batches([b"a" * 6, b"b" * 6, b"c" * 4]) == [[b"a" * 6], [b"b" * 6, b"c" * 4]]
    assert split_batches([]) == []


async def test_round_trip_with_few_signatures(
    four: Any, client: AsyncBlobClient, disperse: Any, verify: Any, fakes: Any
) -> None:
    with mock.patch.object(batch_module, "CLIENT_BATCH_BLOBS", 16):
        dispersal = await disperse(four, [*BLOBS, BLOBS[5]])
    assert dispersal.faults == ()
    assert [node.num_batches for node in four.nodes] == [3] * 4
    assert dispersal.certificates[40] == dispersal.certificates[5]
    for data, certificate in zip(BLOBS, dispersal.certificates, strict=False):
        verify_certificate(certificate, four.committee, genesis_hash=fakes.GENESIS, height=Height(10))
        retrieved = await client.retrieve(certificate.terms.blob, committee=four.committee, max_bytes=10_000)
        assert retrieved.data == data


async def test_one_dead_seat_does_not_matter_and_two_do(four: Any, disperse: Any, fakes: Any) -> None:
    async def refuse(_: web.Request) -> web.StreamResponse:
        answer: web.StreamResponse = fakes.refuse(507, Refusal.FULL, "0 bytes left")
        return answer

    four.nodes[0].put_fault = refuse
    dispersal = await disperse(four, BLOBS)
    assert {fault.seat: fault.kind for fault in dispersal.faults} == {0: FaultKind.REFUSED}
    four.nodes[3].genesis = bytes(32)
    with pytest.raises(NotEnoughReceipts, match=r"seat 3 .*signature does not verify for this batch"):
        await disperse(four, BLOBS)


async def test_connections_that_are_reset_cost_no_quorum(four: Any, disperse: Any, fakes: Any) -> None:
    """Two of four, in the middle of their batch, twice: the HTTP library sends again by itself once."""
    cuts: list[int] = []

    def reset_twice(index: int) -> Any:
        async def reset(request: web.Request) -> web.StreamResponse | None:
            if cuts.count(index) == 2:
                return None
            cuts.append(index)
            await request.content.readany()
            assert request.transport is not None
            request.transport.abort()
            return web.Response(status=500)

        return reset

    for node in four.nodes[1:3]:
        node.put_fault = reset_twice(node.index)
    dispersal = await disperse(four, BLOBS)
    assert sorted(cuts) == [1, 1, 2, 2]
    assert dispersal.faults == ()
    for certificate in dispersal.certificates:
        verify_certificate(certificate, four.committee, genesis_hash=fakes.GENESIS, height=Height(1))


async def test_invalid_large_blob(four: Any, disperse: Any) -> None:
    with pytest.raises(BlobTooLarge, match="blob of 65537 bytes, at most 65536"):
        await disperse(four, [b"small", bytes(65_537)])
    assert all(node.shards == {} for node in four.nodes)
