"""Errors that several system contracts share, declared once.

``CALL_ERRORS`` are raised before a function runs; ``CERTIFICATE_ERRORS`` wherever a contract reads a
storage certificate (Storage itself, and Training for payloads and checkpoint parts).
"""

from __future__ import annotations

from chain.core.abi.declare import error

CALL_ERRORS = (
    error("UnknownFunction", "No function has this selector.", "bytes4 got"),
    error("BadCalldata", "The arguments do not decode; reason says why.", "string reason"),
    error("NotPayable", "The function takes no money.", "uint256 got"),
    error("WriteInStaticCall", "The function changes state, the call may not."),
)

CERTIFICATE_ERRORS = (
    error("BadCertificate", "The certificate does not verify; reason says which check failed.", "string reason"),
    error("NotEnoughSignatures", "", "uint32 expected", "uint32 got"),
    error("WrongEpoch", "", "uint64 expected", "uint64 got"),
    error("CertificateExpired", "", "uint64 expiryHeight", "uint64 height"),
    error("WrongTier", "", "uint8 expected", "uint8 got"),
    error("UnknownTier", "", "uint8 got"),
    error("LeaseTooShort", "The expiry height is too early.", "uint64 minimum", "uint64 got"),
    error("LeaseTooLong", "The expiry height is too late.", "uint64 maximum", "uint64 got"),
)
