"""A node's receipt key: ed25519, made at first start, one line of hex in a file of mode 0600."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from contracts.bindings.errors import KeyFileError
from da.core.receipt import Receipt
from da.core.types import ReceiptTerms, ShardIndex
from da.signing import get_public_key, sign_batch, sign_key_proof, sign_receipt

KEY_FILE_MODE = 0o600
"""Owner reads and writes, nobody else."""


class ReceiptKey:
    """Signs receipts and the proof that the node holds the key."""

    def __init__(self, seed: bytes) -> None:
        """Take the 32-byte seed of RFC 8032."""
        self._key = Ed25519PrivateKey.from_private_bytes(seed)
        self.public: bytes = get_public_key(self._key)
        """32 bytes, as registered on the chain."""

    def sign_receipt(self, terms: ReceiptTerms, seat: ShardIndex) -> Receipt:
        """Return the receipt; call it only when the bytes are as durable as the tier promises."""
        return sign_receipt(self._key, terms, seat)

    def sign_batch(self, terms: Sequence[ReceiptTerms], seat: ShardIndex) -> Receipt:
        """Return one receipt for many shards; call it only when all their bytes are that durable."""
        return sign_batch(self._key, terms, seat)

    def prove(self, genesis_hash: bytes, operator_address: bytes) -> bytes:
        """Return the signature that registerNode asks for."""
        return sign_key_proof(self._key, genesis_hash=genesis_hash, operator_address=operator_address)


def load_or_create_receipt_key(path: Path) -> ReceiptKey:
    """Return the key in a file, made now where there is none.

    Raises: KeyFileError when the file is not one line of 64 hex digits.
    """
    if not path.exists():
        seed = Ed25519PrivateKey.generate().private_bytes_raw()
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, KEY_FILE_MODE)
        with os.fdopen(fd, "w", encoding="ascii") as file:
            file.write(seed.hex() + "\n")
            file.flush()
            os.fsync(file.fileno())
    text = path.read_text(encoding="ascii", errors="replace").strip()
    if not re.fullmatch(r"[0-9a-fA-F]{64}", text):
        raise KeyFileError(
            f"{path} holds {len(text)} characters, expected one line of 64 hex digits; next: restore it from "
            "a copy, or remove it where this node was never registered"
        )
    return ReceiptKey(bytes.fromhex(text))
