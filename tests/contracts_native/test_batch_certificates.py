"""The chain takes the certificate of one blob of a batch, and refuses one that lies about its place."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from driver import GENESIS_HASH, Chain, Reverted

from da.core.certificate import encode_certificate
from da.core.merkle import compute_paths, compute_top
from da.core.receipt import compute_batch_message, compute_receipt_leaf
from da.core.types import BatchPlace, BlobId, Certificate, Epoch, Height, ReceiptTerms, ShardIndex, Tier

NUM_BLOBS = 5


@pytest.fixture
def certify(chain: Chain) -> Any:
    """Return a function: the certificate of blob ``index`` of a batch that all seats signed."""

    def make(index: int) -> Certificate:
        epoch = chain.view("Storage", "epoch")
        terms = [
            ReceiptTerms(
                genesis_hash=GENESIS_HASH,
                epoch=Epoch(epoch),
                blob=BlobId(bytes([number]) * 32),
                size_bytes=1000,
                tier=Tier.TEMPORARY,
                expiry=Height(chain.height + 100),
            )
            for number in range(NUM_BLOBS)
        ]
        leaves = [compute_receipt_leaf(each) for each in terms]
        keys = {node.public: node.key for node in chain.nodes}
        committee = chain.structs("Storage", "committee", epoch)
        return Certificate(
            terms=terms[index],
            signatures=tuple(
                (
                    ShardIndex(seat),
                    keys[committee[seat]["key"]].sign(
                        compute_batch_message(compute_top(leaves), NUM_BLOBS, ShardIndex(seat))
                    ),
                )
                for seat in range(len(committee))
            ),
            batch=BatchPlace(index=index, num_blobs=NUM_BLOBS, siblings=compute_paths(leaves)[index]),
        )

    return make


@pytest.mark.parametrize("index", range(NUM_BLOBS))
def test_every_blob_of_a_batch_can_be_leased_alone(chain: Chain, certify: Any, index: int) -> None:
    certificate = certify(index)
    chain.fund("alice")
    blob = chain.call("Storage", "certify", encode_certificate(certificate), sender="alice", value=10**18)
    assert blob == certificate.terms.blob
    assert chain.struct("Storage", "blob", blob)["state"] == 1


def test_invalid_place_or_too_few_signatures(chain: Chain, certify: Any) -> None:
    good = certify(2)
    chain.fund("alice")

    def name(certificate: Certificate) -> str:
        with pytest.raises(Reverted) as raised:
            chain.call("Storage", "certify", encode_certificate(certificate), sender="alice", value=10**18)
        return raised.value.name

    assert name(dataclasses.replace(good, batch=dataclasses.replace(good.batch, index=3))) == "BadCertificate"
    assert name(dataclasses.replace(good, batch=None)) == "BadCertificate"
    other = dataclasses.replace(good.terms, size_bytes=999)
    assert name(dataclasses.replace(good, terms=other)) == "BadCertificate"
    assert name(dataclasses.replace(good, signatures=good.signatures[:2])) == "NotEnoughSignatures"
