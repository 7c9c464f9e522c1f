"""Checks the signatures of certificates while their transactions wait, in a thread of its own.

An ed25519 check takes 90 us and needs no interpreter lock, and a commit carries three or more; FinalizeBlock then
finds the answers (``da.core.receipt.is_signature_valid`` remembers them) and takes half as long.  A hint and nothing
more: what was not checked ahead is checked in the block, with the same result.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor

from da.core.certificate import MAX_CERTIFICATE_BYTES, decode_certificate, verify_certificate
from da.core.errors import InvalidCertificate, MalformedCertificate
from da.core.types import Committee, Height

MAX_WAITING = 4_096
"""Certificates; the oldest goes unchecked when more come."""

_WORD_BYTES = 32
"""Of the ABI: the length before a byte string."""


class SignaturesAhead:
    """One thread, started with the first certificate; it ends when this object is collected."""

    def __init__(self) -> None:
        """Start nothing yet."""
        self._waiting: deque[tuple[bytes, Committee]] = deque(maxlen=MAX_WAITING)
        self._pool: ThreadPoolExecutor | None = None
        self._is_busy = False

    def submit(self, certificate: bytes, committee: Committee) -> None:
        """Check a certificate's signatures some time soon."""
        self._waiting.append((certificate, committee))
        if not self._is_busy:
            self._is_busy = True
            self._pool = self._pool or ThreadPoolExecutor(1, thread_name_prefix="signatures")
            self._pool.submit(self._check_all)

    def _check_all(self) -> None:
        try:
            while self._waiting:
                _check(*self._waiting.popleft())
        finally:
            self._is_busy = False


def find_certificate(calldata: bytes, genesis_hash: bytes) -> bytes | None:
    """Return the certificate in a call's arguments: the byte string that names this chain at its offset 1."""
    start = calldata.find(genesis_hash) - 1
    if start < _WORD_BYTES:
        return None
    length = int.from_bytes(calldata[start - _WORD_BYTES : start], "big")
    return calldata[start : start + length] if length <= MAX_CERTIFICATE_BYTES else None


def read_epoch(certificate: bytes) -> int:
    """Return the committee's epoch that a certificate names (``da.core.certificate``, offset 33)."""
    return int.from_bytes(certificate[33:41], "big")


def _check(data: bytes, committee: Committee) -> None:
    """Have the signatures checked and remembered; the verdict is the block's to give."""
    try:
        certificate = decode_certificate(data)
        terms = certificate.terms
        verify_certificate(
            certificate, committee, genesis_hash=terms.genesis_hash, height=Height(max(terms.expiry - 1, 0))
        )
    except (MalformedCertificate, InvalidCertificate):
        return
