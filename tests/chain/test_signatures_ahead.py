"""Certificates checked ahead: found in calldata, and never checked twice."""

from __future__ import annotations

import time
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from chain.abci.signatures_ahead import SignaturesAhead, find_certificate, read_epoch
from chain.core.contracts.registry import CODECS
from chain.core.rounds.book import TRAINING
from da.core import receipt
from da.core.certificate import encode_certificate, verify_certificate
from da.core.errors import ForgedSignature
from da.core.types import BlobId, Certificate, Committee, Epoch, Height, ReceiptTerms, Seat, ShardIndex, Tier

GENESIS_HASH = bytes(range(32))
KEY = Ed25519PrivateKey.from_private_bytes(b"\x05" * 32)
COMMITTEE = Committee(
    epoch=Epoch(3), seats=(Seat(index=ShardIndex(0), key=KEY.public_key().public_bytes_raw(), url=""),)
)


def make_certificate(blob: bytes, *, is_forged: bool = False) -> Certificate:
    terms = ReceiptTerms(
        genesis_hash=GENESIS_HASH,
        epoch=Epoch(3),
        blob=BlobId(blob),
        size_bytes=10,
        tier=Tier.TEMPORARY,
        expiry=Height(50),
    )
    signature = KEY.sign(b"another" if is_forged else receipt.compute_receipt_message(terms, ShardIndex(0)))
    return Certificate(terms=terms, signatures=((ShardIndex(0), signature),))


def encode_commit(certificate: bytes) -> bytes:
    arguments = (1, 0, b"\x11" * 32, b"\x22" * 32, certificate, 100, 5)
    return CODECS[TRAINING].by_name["commit"].encode_inputs(arguments)


def test_a_certificate_is_found_in_a_call() -> None:
    encoded = encode_certificate(make_certificate(b"\x07" * 32))
    assert find_certificate(encode_commit(encoded), GENESIS_HASH) == encoded
    assert read_epoch(encoded) == 3


@pytest.mark.parametrize(
    "calldata", [b"", GENESIS_HASH, b"\x01" + GENESIS_HASH, b"\xff" * 32 + b"\x01" + GENESIS_HASH, bytes(40)]
)
def test_none_is_found_where_there_is_none(calldata: bytes) -> None:
    assert find_certificate(calldata, GENESIS_HASH) is None


@pytest.mark.parametrize("is_forged", [False, True])
def test_what_was_checked_ahead_is_not_checked_again(is_forged: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate = make_certificate(b"\x08" * 31 + bytes([is_forged]), is_forged=is_forged)
    ahead = SignaturesAhead()
    ahead.submit(encode_certificate(certificate), COMMITTEE)
    ahead.submit(b"no certificate", COMMITTEE)
    deadline = time.monotonic() + 10
    signature = certificate.signatures[0][1]
    while not any(known[1] == signature for known in list(receipt._VERDICTS)) or ahead._is_busy:
        assert time.monotonic() < deadline
        time.sleep(0.001)

    def fail(key: bytes) -> Any:
        raise AssertionError("checked again")

    monkeypatch.setattr(receipt, "VerifyKey", fail)
    if is_forged:
        with pytest.raises(ForgedSignature):
            verify_certificate(certificate, COMMITTEE, genesis_hash=GENESIS_HASH, height=Height(1))
    else:
        verify_certificate(certificate, COMMITTEE, genesis_hash=GENESIS_HASH, height=Height(1))
