"""Enough receipts of one committee, as the chain takes them (DESIGN 5, *Certificate*).

The encoding is canonical: a bitmap of seats and one signature a bit, so no seat can be counted twice on the wire.
Verification is integers and one ed25519 check a seat, with one error class per reason.

Layout, big-endian::

    offset   0  u8       version, 1 for one blob, 2 for a blob of a batch
             1  32       genesis hash
            33  u64      committee epoch
            41  32       blob id
            73  u64      size of the blob in bytes, 0 .. 10^13
            81  u8       tier
            82  u64      expiry height
            90  u64      bitmap: bit i stands for seat i
            98  b x 64   signatures by ascending seat, b = number of bits set

Version 2 has before the signatures::

            98  u32      index of the blob in the batch
           102  u32      number of blobs of the batch, 1 .. 4096
           106  p x 32   siblings, from the leaf upwards; index and number say how many
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from da.core.blob import MAX_BLOB_BYTES
from da.core.errors import (
    BadBatchPath,
    CertificateExpired,
    DuplicateSeat,
    ForgedSignature,
    MalformedCertificate,
    NotEnoughSignatures,
    UnknownSeat,
    WrongEpoch,
    WrongGenesis,
)
from da.core.hashing import HASH_BYTES
from da.core.merkle import compute_num_siblings, compute_path_top
from da.core.receipt import (
    MAX_BATCH_BLOBS,
    SIGNATURE_BYTES,
    compute_batch_message,
    compute_receipt_leaf,
    compute_receipt_message,
    is_signature_valid,
)
from da.core.scheme import MAX_SEATS, compute_tier_scheme
from da.core.types import BatchPlace, BlobId, Certificate, Committee, Epoch, Height, ReceiptTerms, ShardIndex, Tier

CERTIFICATE_VERSION = 1
"""Every seat signed this blob."""

BATCH_VERSION = 2
"""Every seat signed a batch with this blob in it."""

MAX_CERTIFICATE_BYTES = 106 + 12 * HASH_BYTES + MAX_SEATS * SIGNATURE_BYTES
"""All 64 seats have signed a batch of 4,096 blobs."""

_FIXED_BYTES = 98

_BATCH_BYTES = 8

_TIERS = {int(tier): tier for tier in Tier}


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
            bytes((CERTIFICATE_VERSION if certificate.batch is None else BATCH_VERSION,)),
            terms.genesis_hash,
            terms.epoch.to_bytes(8, "big"),
            terms.blob,
            terms.size_bytes.to_bytes(8, "big"),
            int(terms.tier).to_bytes(1, "big"),
            terms.expiry.to_bytes(8, "big"),
            sum(1 << seat for seat in seats).to_bytes(8, "big"),
            _encode_batch(certificate.batch),
            *(signature for _, signature in certificate.signatures),
        )
    )


def decode_certificate(data: bytes) -> Certificate:
    """Decode canonical bytes; total: any other input raises ``MalformedCertificate``."""
    if len(data) < _FIXED_BYTES:
        raise MalformedCertificate(f"{len(data)} bytes, expected at least {_FIXED_BYTES}")
    data = bytes(data)
    if data[0] not in (CERTIFICATE_VERSION, BATCH_VERSION):
        raise MalformedCertificate(f"version {data[0]}, expected {CERTIFICATE_VERSION} or {BATCH_VERSION}")
    size_bytes = int.from_bytes(data[73:81], "big")
    if size_bytes > MAX_BLOB_BYTES:
        raise MalformedCertificate(f"blob of {size_bytes} bytes, at most {MAX_BLOB_BYTES}")
    if data[81] not in _TIERS:
        raise MalformedCertificate(f"tier {data[81]}, expected 0 to {max(Tier)}")
    bitmap = int.from_bytes(data[90:98], "big")
    seats = _list_bits(bitmap)
    batch, signatures_at = _decode_batch(data) if data[0] == BATCH_VERSION else (None, _FIXED_BYTES)
    if len(data) != signatures_at + len(seats) * SIGNATURE_BYTES:
        raise MalformedCertificate(
            f"{len(data)} bytes, expected {signatures_at + len(seats) * SIGNATURE_BYTES} for {len(seats)} signatures"
        )
    return Certificate(
        terms=ReceiptTerms(
            genesis_hash=data[1:33],
            epoch=Epoch(int.from_bytes(data[33:41], "big")),
            blob=BlobId(data[41:73]),
            size_bytes=size_bytes,
            tier=_TIERS[data[81]],
            expiry=Height(int.from_bytes(data[82:90], "big")),
        ),
        signatures=tuple(
            (ShardIndex(seat), data[start : start + SIGNATURE_BYTES])
            for seat, start in zip(seats, range(signatures_at, len(data), SIGNATURE_BYTES), strict=True)
        ),
        batch=batch,
    )


def verify_certificate(certificate: Certificate, committee: Committee, *, genesis_hash: bytes, height: Height) -> None:
    """Check that enough seats of ``committee`` promised the blob beyond ``height``.

    Cheap checks come first; signatures are verified only when the certificate could be valid.

    Raises:
        WrongGenesis: signed for another chain.
        WrongEpoch: signed under another committee than ``committee``.
        CertificateExpired: the expiry is not above ``height``.
        DuplicateSeat, UnknownSeat: a seat twice, or outside the committee.
        NotEnoughSignatures: fewer than the s of the committee's scheme for the tier.
        BadBatchPath: the path to the batch has a wrong length.
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
    scheme = compute_tier_scheme(num_seats, certificate.terms.tier)
    if len(seen) < scheme.num_signatures:
        raise NotEnoughSignatures(expected=scheme.num_signatures, got=len(seen))
    for seat, key, signature, message in iterate_signed(certificate, committee):
        if not is_signature_valid(key, signature, message):
            raise ForgedSignature(seat=seat, key=key)


def iterate_signed(certificate: Certificate, committee: Committee) -> Iterator[tuple[ShardIndex, bytes, bytes, bytes]]:
    """Yield (seat, its key, its signature, the message that it should have signed); raises BadBatchPath.

    The seats must be the committee's.
    """
    terms, batch = certificate.terms, certificate.batch
    top = b"" if batch is None else _compute_batch_top(terms, batch)
    for seat, signature in certificate.signatures:
        if batch is None:
            message = compute_receipt_message(terms, seat)
        else:
            message = compute_batch_message(top, batch.num_blobs, seat)
        yield seat, committee.seats[seat].key, signature, message


def _compute_batch_top(terms: ReceiptTerms, place: BatchPlace) -> bytes:
    expected = compute_num_siblings(place.index, place.num_blobs)
    if not 0 <= place.index < place.num_blobs <= MAX_BATCH_BLOBS or len(place.siblings) != expected:
        raise BadBatchPath(index=place.index, num_blobs=place.num_blobs, expected=expected, got=len(place.siblings))
    return compute_path_top(compute_receipt_leaf(terms), place.index, place.num_blobs, place.siblings)


def _encode_batch(place: BatchPlace | None) -> bytes:
    if place is None:
        return b""
    if (
        not 0 <= place.index < place.num_blobs <= MAX_BATCH_BLOBS
        or len(place.siblings) != compute_num_siblings(place.index, place.num_blobs)
        or any(len(sibling) != HASH_BYTES for sibling in place.siblings)
    ):
        raise MalformedCertificate(
            f"blob {place.index} of a batch of {place.num_blobs} (at most {MAX_BATCH_BLOBS}) with a path of "
            f"{len(place.siblings)} hashes"
        )
    return place.index.to_bytes(4, "big") + place.num_blobs.to_bytes(4, "big") + b"".join(place.siblings)


def _list_bits(bitmap: int) -> list[int]:
    """Return the indices of the bits that are set, ascending."""
    indices = []
    while bitmap:
        lowest = bitmap & -bitmap
        indices.append(lowest.bit_length() - 1)
        bitmap ^= lowest
    return indices


def _decode_batch(data: bytes) -> tuple[BatchPlace, int]:
    """Return the place and where the signatures start."""
    path_at = _FIXED_BYTES + _BATCH_BYTES
    index, num_blobs = int.from_bytes(data[98:102], "big"), int.from_bytes(data[102:106], "big")
    if len(data) < path_at or not index < num_blobs <= MAX_BATCH_BLOBS:
        raise MalformedCertificate(f"blob {index} of a batch of {num_blobs}, at most {MAX_BATCH_BLOBS}")
    stop = path_at + compute_num_siblings(index, num_blobs) * HASH_BYTES
    if len(data) < stop:
        raise MalformedCertificate(f"{len(data)} bytes, expected at least {stop}")
    siblings = tuple(data[at : at + HASH_BYTES] for at in range(path_at, stop, HASH_BYTES))
    return BatchPlace(index=index, num_blobs=num_blobs, siblings=siblings), stop
