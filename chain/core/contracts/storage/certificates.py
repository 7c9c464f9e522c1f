"""Certificates as the contracts take them: checked against the current and the previous committee.

``da.core.certificate`` says what a valid certificate is; here its errors become the contract's.
"""

from __future__ import annotations

from dataclasses import dataclass

from chain.core.abi.refusal import Refusal
from chain.core.contracts.gas import SIGNATURE_GAS
from chain.core.contracts.storage.epochs import get_committee
from chain.core.contracts.storage.keys import get_epoch_state
from chain.core.native import Meter
from chain.core.turn import Turn
from da.core.certificate import decode_certificate, verify_certificate
from da.core.errors import (
    CertificateExpired,
    InvalidCertificate,
    MalformedCertificate,
    NotEnoughSignatures,
    WrongEpoch,
)
from da.core.types import Height


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredBlob:
    """What a verified certificate proves."""

    blob: bytes
    """Blob id, 32 bytes."""
    size_bytes: int
    """Before coding."""
    tier: int
    """0 temporary, 1 hot, 2 cold."""
    epoch: int
    """Committee that keeps it."""
    expiry_height: int
    """Kept at least until this height."""
    signers: int = 0
    """Bitmap of the seats that signed."""


def process_certificate(turn: Turn, meter: Meter, data: bytes) -> StoredBlob:
    """Verify an encoded certificate and return what it proves; charge for its signatures first."""
    try:
        certificate = decode_certificate(data)
    except MalformedCertificate as error:
        raise Refusal("BadCertificate", str(error)) from error
    terms = certificate.terms
    current = get_epoch_state(turn.state).epoch
    if terms.epoch == 0 or not current - 1 <= terms.epoch <= current:
        raise Refusal("WrongEpoch", current, terms.epoch)
    committee = get_committee(turn.state, terms.epoch)
    assert committee is not None, "every epoch up to the current one has a committee"
    meter.charge(SIGNATURE_GAS * len(certificate.signatures))
    try:
        verify_certificate(certificate, committee, genesis_hash=turn.genesis_hash, height=Height(turn.height))
    except NotEnoughSignatures as error:
        raise Refusal("NotEnoughSignatures", error.expected, error.got) from error
    except CertificateExpired as error:
        raise Refusal("CertificateExpired", error.expiry, error.height) from error
    except WrongEpoch as error:
        raise Refusal("WrongEpoch", error.expected, error.got) from error
    except InvalidCertificate as error:
        raise Refusal("BadCertificate", f"{type(error).__name__}: {error}") from error
    return StoredBlob(
        blob=terms.blob,
        size_bytes=terms.size_bytes,
        tier=int(terms.tier),
        epoch=terms.epoch,
        expiry_height=terms.expiry,
        signers=sum(1 << seat for seat, _ in certificate.signatures),
    )
