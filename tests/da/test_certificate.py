"""Receipts and certificates: what certifies, and one refusal per reason."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from da.core.certificate import MAX_CERTIFICATE_BYTES, decode_certificate, encode_certificate, verify_certificate
from da.core.errors import (
    CertificateExpired,
    DuplicateSeat,
    ForgedSignature,
    MalformedCertificate,
    NotEnoughSignatures,
    UnknownSeat,
    WrongEpoch,
    WrongGenesis,
)
from da.core.receipt import compute_receipt_message, is_key_proof_valid, is_receipt_valid, is_signature_valid
from da.core.scheme import compute_scheme
from da.core.types import Certificate, Epoch, Height, ShardIndex, Tier
from da.signing import get_public_key, sign_key_proof, sign_receipt


@pytest.fixture(scope="module")
def certify(fakes: Any) -> Any:
    """Return a function: certificate by these seats, terms changed as told."""

    def make(*seats: int, **changes: object) -> Certificate:
        terms = fakes.make_terms(**changes)
        return Certificate(
            terms=terms,
            signatures=tuple(
                (ShardIndex(seat), sign_receipt(fakes.make_key(seat), terms, ShardIndex(seat)).signature)
                for seat in seats
            ),
        )

    return make


@pytest.fixture(scope="module")
def verify(fakes: Any) -> Any:
    """Return a function: verify on the right chain, before the expiry."""

    def check(certificate: Certificate, num_seats: int = 4, height: int = 10) -> None:
        verify_certificate(
            certificate, fakes.make_committee(num_seats), genesis_hash=fakes.GENESIS, height=Height(height)
        )

    return check


def test_enough_signatures_certify(certify: Any, verify: Any) -> None:
    verify(certify(0, 1, 2))
    verify(certify(1, 2, 3))
    verify(certify(0, 1, 2, 3))


@pytest.mark.parametrize("num_seats", [1, 2, 3, 4, 5, 6, 7, 9, 12, 33, 64])
def test_the_threshold_is_exact(certify: Any, verify: Any, num_seats: int) -> None:
    needed = compute_scheme(num_seats).num_signatures
    verify(certify(*range(num_seats - needed, num_seats)), num_seats)
    with pytest.raises(NotEnoughSignatures) as caught:
        verify(certify(*range(needed - 1)), num_seats)
    assert (caught.value.expected, caught.value.got) == (needed, needed - 1)


@pytest.mark.parametrize(("num_seats", "two_thirds"), [(6, 4), (9, 6), (12, 8), (60, 40), (63, 42)])
def test_invalid_exactly_two_thirds_of_the_seats(certify: Any, verify: Any, num_seats: int, two_thirds: int) -> None:
    """More than two thirds is the rule: 3 * signed > 2 * seats; one more is accepted."""
    assert 3 * two_thirds == 2 * num_seats
    with pytest.raises(NotEnoughSignatures):
        verify(certify(*range(two_thirds)), num_seats)
    verify(certify(*range(two_thirds + 1)), num_seats)


def test_invalid_exactly_two_thirds_of_what_is_needed(certify: Any, verify: Any) -> None:
    with pytest.raises(NotEnoughSignatures, match="2 signatures, expected at least 3"):
        verify(certify(0, 1))


def test_invalid_forged_signature(certify: Any, verify: Any) -> None:
    good = certify(0, 1, 2, 3)
    for position in range(4):
        signatures = list(good.signatures)
        seat, signature = signatures[position]
        signatures[position] = (seat, signature[:-1] + bytes([signature[-1] ^ 1]))
        with pytest.raises(ForgedSignature) as caught:
            verify(dataclasses.replace(good, signatures=tuple(signatures)))
        assert caught.value.seat == position


def test_invalid_signature_of_another_seat(certify: Any, verify: Any) -> None:
    """One seat's signature copied under a second number does not count twice."""
    good = certify(0, 1)
    copied = dataclasses.replace(good, signatures=(*good.signatures, (ShardIndex(2), good.signatures[1][1])))
    with pytest.raises(ForgedSignature, match="seat 2"):
        verify(copied)


@pytest.mark.parametrize(
    "change",
    [{"blob": bytes([1]) * 32}, {"size_bytes": 11}, {"tier": Tier.HOT}, {"expiry": Height(1001)}],
    ids=lambda change: next(iter(change)),
)
def test_invalid_terms_that_nobody_signed(certify: Any, verify: Any, change: dict[str, Any]) -> None:
    good = certify(0, 1, 2)
    with pytest.raises(ForgedSignature):
        verify(dataclasses.replace(good, terms=dataclasses.replace(good.terms, **change)))


def test_invalid_duplicated_seat(certify: Any, verify: Any) -> None:
    with pytest.raises(DuplicateSeat, match="seat 1"):
        verify(certify(0, 1, 1))
    with pytest.raises(MalformedCertificate, match="ascend"):
        encode_certificate(certify(0, 1, 1))


def test_invalid_unknown_seat(certify: Any, verify: Any) -> None:
    with pytest.raises(UnknownSeat, match="seat 4 in a committee of 4"):
        verify(certify(0, 1, 2, 4))


@pytest.mark.parametrize("epoch", [6, 8, 0])
def test_invalid_epoch(certify: Any, verify: Any, epoch: int) -> None:
    with pytest.raises(WrongEpoch) as caught:
        verify(certify(0, 1, 2, epoch=Epoch(epoch)))
    assert (caught.value.expected, caught.value.got) == (7, epoch)


def test_invalid_genesis(certify: Any, verify: Any) -> None:
    with pytest.raises(WrongGenesis):
        verify(certify(0, 1, 2, genesis_hash=bytes(32)))


def test_expiry_is_exact(certify: Any, verify: Any) -> None:
    verify(certify(0, 1, 2), height=999)
    for height in (1000, 1001):
        with pytest.raises(CertificateExpired) as caught:
            verify(certify(0, 1, 2), height=height)
        assert (caught.value.expiry, caught.value.height) == (1000, height)


@settings(max_examples=100, deadline=None)
@given(
    seats=st.sets(st.integers(0, 63), max_size=10),
    epoch=st.integers(0, 2**64 - 1),
    size=st.integers(0, 10**13),
    tier=st.sampled_from(Tier),
    expiry=st.integers(0, 2**64 - 1),
)
def test_encoding_round_trips(fakes: Any, seats: set[int], epoch: int, size: int, tier: Tier, expiry: int) -> None:
    terms = fakes.make_terms(epoch=Epoch(epoch), size_bytes=size, tier=tier, expiry=Height(expiry))
    signatures = tuple((ShardIndex(seat), bytes([seat]) * 64) for seat in sorted(seats))
    certificate = Certificate(terms=terms, signatures=signatures)
    encoded = encode_certificate(certificate)
    assert len(encoded) == 98 + 64 * len(seats) <= MAX_CERTIFICATE_BYTES
    assert decode_certificate(encoded) == certificate


@pytest.mark.parametrize("flip", range(0, 98 + 3 * 64, 7))
def test_invalid_encoding_with_one_flipped_bit(certify: Any, verify: Any, flip: int) -> None:
    encoded = bytearray(encode_certificate(certify(0, 1, 2)))
    encoded[flip] ^= 1
    with pytest.raises(
        (MalformedCertificate, WrongGenesis, WrongEpoch, ForgedSignature, CertificateExpired, NotEnoughSignatures)
    ):
        verify(decode_certificate(bytes(encoded)))


def make_up_certificate(tail: bytes) -> bytes:
    """Return bytes that start like a certificate of either version."""
    return bytes((1 + len(tail) % 2,)) + bytes(88) + tail


@settings(max_examples=400, deadline=None)
@given(data=st.one_of(st.binary(max_size=300), st.binary(max_size=400).map(make_up_certificate)))
def test_decoding_is_total(data: bytes) -> None:
    try:
        certificate = decode_certificate(data)
    except MalformedCertificate:
        return
    assert encode_certificate(certificate) == data


def test_invalid_encodings_are_refused(certify: Any) -> None:
    good = encode_certificate(certify(0, 1, 2))
    for bad, reason in [
        (b"", "0 bytes"),
        (b"\2" + good[1:], "blob .* of a batch of"),
        (b"\3" + good[1:], "version 3, expected 1 or 2"),
        (good[:-1], "289 bytes, expected 290"),
        (good + bytes(64), "354 bytes, expected 290"),
        (good[:81] + b"\3" + good[82:], "tier 3"),
        (good[:73] + b"\xff" + good[74:], "at most 10000000000000"),
    ]:
        with pytest.raises(MalformedCertificate, match=reason):
            decode_certificate(bad)


def test_known_receipt_message(fakes: Any) -> None:
    """The layout is a format: this digest changes only with a new version."""
    message = compute_receipt_message(fakes.make_terms(), ShardIndex(3))
    assert message.hex() == "e65bab614704f990bc6ef7a750c085581b17a49f738951fbc30d7870655a0c79"


def test_a_receipt_fits_one_seat_and_key(fakes: Any) -> None:
    key, terms = fakes.make_key(1), fakes.make_terms()
    receipt = sign_receipt(key, terms, ShardIndex(1))
    assert is_receipt_valid(receipt, terms, key=get_public_key(key))
    assert not is_receipt_valid(receipt, terms, key=get_public_key(fakes.make_key(2)))
    assert not is_receipt_valid(dataclasses.replace(receipt, seat=ShardIndex(2)), terms, key=get_public_key(key))


def test_a_key_proof_fits_one_operator_and_chain(fakes: Any) -> None:
    key, operator = fakes.make_key(0), bytes(range(20))
    proof = sign_key_proof(key, genesis_hash=fakes.GENESIS, operator_address=operator)
    public = get_public_key(key)
    assert is_key_proof_valid(public, proof, genesis_hash=fakes.GENESIS, operator_address=operator)
    assert not is_key_proof_valid(public, proof, genesis_hash=bytes(32), operator_address=operator)
    assert not is_key_proof_valid(public, proof, genesis_hash=fakes.GENESIS, operator_address=bytes(20))
    other = get_public_key(fakes.make_key(1))
    assert not is_key_proof_valid(other, proof, genesis_hash=fakes.GENESIS, operator_address=operator)


@settings(max_examples=100, deadline=None)
@given(key=st.binary(max_size=40), signature=st.binary(max_size=70))
def test_verifying_a_signature_is_total(key: bytes, signature: bytes) -> None:
    assert not is_signature_valid(key, signature, b"message")
    assert not is_signature_valid(key[:32].ljust(32, b"\0"), signature[:64].ljust(64, b"\1"), b"message")


def test_a_key_of_small_order_signs_nothing() -> None:
    """The neutral point as key and as R, with S = 0, satisfies the bare equation for every message."""
    neutral = (1).to_bytes(32, "little")
    assert not is_signature_valid(neutral, neutral + bytes(32), b"\x07" * 32)


@settings(max_examples=25, deadline=None)
@given(seed=st.binary(min_size=32, max_size=32), message=st.binary(min_size=32, max_size=32))
def test_signatures_of_another_library_are_valid(seed: bytes, message: bytes) -> None:
    """Oracle: OpenSSL signs; one flipped bit is noticed."""
    key = Ed25519PrivateKey.from_private_bytes(seed)
    public, signature = key.public_key().public_bytes_raw(), key.sign(message)
    assert is_signature_valid(public, signature, message)
    assert not is_signature_valid(public, signature[:-1] + bytes([signature[-1] ^ 1]), message)
