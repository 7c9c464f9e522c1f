"""Enough receipts of one committee, as the chain takes them (DESIGN 5, *Certificate*).

The encoding is canonical: a bitmap of seats and one signature a bit, so no seat can be counted twice on the wire.
Verification is integers and one ed25519 check a seat, with one error class per reason.

Layout, big-endian::

    offset   0  u8       version, 1
             1  32       genesis hash
            33  u64      committee epoch
            41  32       blob id
            73  u64      size of the blob in bytes, 0 .. 10^13
            81  u8       tier
            82  u64      expiry height
            90  u64      bitmap: bit i stands for seat i
            98  b x 64   signatures by ascending seat, b = number of bits set
"""

from __future__ import annotations

from itertools import pairwise

from da.core.blob import MAX_BLOB_BYTES
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
from da.core.receipt import SIGNATURE_BYTES, compute_receipt_message, is_signature_valid
from da.core.scheme import MAX_SEATS, compute_scheme
from da.core.types import BlobId, Certificate, Committee, Epoch, Height, ReceiptTerms, ShardIndex, Tier

CERTIFICATE_VERSION = 1
"""The only certificate format so far."""

MAX_CERTIFICATE_BYTES = 98 + MAX_SEATS * SIGNATURE_BYTES
"""All 64 seats have signed."""

_FIXED_BYTES = 98


def encode_certificate(certificate: Certificate) -> bytes:
    """Return the canonical bytes of ``certificate`` (layout above).

    Raises:
        MalformedCertificate: the seats do not ascend strictly in 0..63, or a field does not fit its width.
    """
    seats = [seat for seat, _ in certificate.signatures]
    if any(later <= earlier for earlier, later in pairwise(seats)):
        raise MalformedCertificate(f"seats {seats} do not ascend; each may sign once")
    if any(not 0 <= seat < MAX_SEATS for seat in seats):
        raise MalformedCertificate(f"seats {seats}, expected 0 to {MAX_SEATS - 1}")
    terms = certificate.terms
    for signature in (signature for _, signature in certificate.signatures):
        if len(signature) != SIGNATURE_BYTES:
            raise MalformedCertificate(f"a signature of {len(signature)} bytes, expected {SIGNATURE_BYTES}")
    return b"".join(
        (
            bytes((CERTIFICATE_VERSION,)),
            terms.genesis_hash,
            terms.epoch.to_bytes(8, "big"),
            terms.blob,
            terms.size_bytes.to_bytes(8, "big"),
            int(terms.tier).to_bytes(1, "big"),
            terms.expiry.to_bytes(8, "big"),
            sum(1 << seat for seat in seats).to_bytes(8, "big"),
            *(signature for _, signature in certificate.signatures),
        )
    )


def decode_certificate(data: bytes) -> Certificate:
    """Decode canonical bytes; total: any other input raises ``MalformedCertificate``."""
    if len(data) < _FIXED_BYTES:
        raise MalformedCertificate(f"{len(data)} bytes, expected at least {_FIXED_BYTES}")
    data = bytes(data)
    if data[0] != CERTIFICATE_VERSION:
        raise MalformedCertificate(f"version {data[0]}, expected {CERTIFICATE_VERSION}")
    size_bytes = int.from_bytes(data[73:81], "big")
    if size_bytes > MAX_BLOB_BYTES:
        raise MalformedCertificate(f"blob of {size_bytes} bytes, at most {MAX_BLOB_BYTES}")
    if data[81] not in {int(tier) for tier in Tier}:
        raise MalformedCertificate(f"tier {data[81]}, expected 0 to {max(Tier)}")
    bitmap = int.from_bytes(data[90:98], "big")
    seats = [seat for seat in range(MAX_SEATS) if bitmap >> seat & 1]
    if len(data) != _FIXED_BYTES + len(seats) * SIGNATURE_BYTES:
        raise MalformedCertificate(
            f"{len(data)} bytes, expected {_FIXED_BYTES + len(seats) * SIGNATURE_BYTES} for {len(seats)} signatures"
        )
    return Certificate(
        terms=ReceiptTerms(
            genesis_hash=data[1:33],
            epoch=Epoch(int.from_bytes(data[33:41], "big")),
            blob=BlobId(data[41:73]),
            size_bytes=size_bytes,
            tier=Tier(data[81]),
            expiry=Height(int.from_bytes(data[82:90], "big")),
        ),
        signatures=tuple(
            (ShardIndex(seat), data[start : start + SIGNATURE_BYTES])
            for seat, start in zip(seats, range(_FIXED_BYTES, len(data), SIGNATURE_BYTES), strict=True)
        ),
    )


def verify_certificate(certificate: Certificate, committee: Committee, *, genesis_hash: bytes, height: Height) -> None:
    """Check that enough seats of ``committee`` promised the blob beyond ``height``.

    Cheap checks come first; signatures are verified only when the certificate could be valid.

    Raises:
        WrongGenesis: signed for another chain.
        WrongEpoch: signed under another committee than ``committee``.
        CertificateExpired: the expiry is not above ``height``.
        DuplicateSeat, UnknownSeat: a seat twice, or outside the committee.
        NotEnoughSignatures: fewer than the s of the committee's scheme.
        ForgedSignature: a signature that is not its seat's; one is enough to refuse.
    """
    terms = certificate.terms
    if terms.genesis_hash != genesis_hash:
        raise WrongGenesis(expected=genesis_hash, got=terms.genesis_hash)
    if terms.epoch != committee.epoch:
        raise WrongEpoch(expected=committee.epoch, got=terms.epoch)
    if terms.expiry <= height:
        raise CertificateExpired(expiry=terms.expiry, height=height)
    num_seats = len(committee.seats)
    seen: set[int] = set()
    for seat, _ in certificate.signatures:
        if not 0 <= seat < num_seats:
            raise UnknownSeat(seat=seat, num_seats=num_seats)
        if seat in seen:
            raise DuplicateSeat(seat)
        seen.add(seat)
    scheme = compute_scheme(num_seats)
    if len(seen) < scheme.num_signatures:
        raise NotEnoughSignatures(expected=scheme.num_signatures, got=len(seen))
    for seat, signature in certificate.signatures:
        key = committee.seats[seat].key
        if not is_signature_valid(key, signature, compute_receipt_message(terms, seat)):
            raise ForgedSignature(seat=seat, key=key)
