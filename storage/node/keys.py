"""A node's two keys, made at first start, each one line of hex in a file of mode 0600.

The receipt key is ed25519, the operator's, an account of the chain, secp256k1. Invariant: a start that is cut leaves a
whole key or none, and of two starts at once both go on with the same.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from contracts.bindings.errors import KeyFileError
from contracts.bindings.keys import create_key
from contracts.bindings.unlocking import unlock_key
from da.core.errors import NotAFile
from da.core.receipt import Receipt
from da.core.types import ReceiptTerms, ShardIndex
from da.input_file import read_input
from da.landing import create_new, publish_new
from da.signing import get_public_key, sign_batch, sign_key_proof, sign_receipt

KEY_FILE_MODE = 0o600
"""Owner reads and writes, nobody else."""

MAX_KEY_FILE_BYTES = 4096
"""Far more than a line of hex."""

_RECEIPT_STEP = "next: restore it from a copy, or remove it where this node was never registered"


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

    Raises: KeyFileError when it is no file, or not one line of 64 hex digits.
    """
    if not path.exists():
        seed = Ed25519PrivateKey.generate().private_bytes_raw()
        with suppress(FileExistsError):  # another start was faster: its key stands
            create_new(path, seed.hex().encode() + b"\n", mode=KEY_FILE_MODE)
    try:
        text = read_input(path, limit_bytes=MAX_KEY_FILE_BYTES).decode("ascii", errors="replace").strip()
    except NotAFile as error:
        raise KeyFileError(f"{path} {error.found}, expected a key file; {_RECEIPT_STEP}") from error
    if not re.fullmatch(r"[0-9a-fA-F]{64}", text):
        raise KeyFileError(f"{path} holds {len(text)} characters, expected one line of 64 hex digits; {_RECEIPT_STEP}")
    return ReceiptKey(bytes.fromhex(text))


def load_or_create_operator_key(path: Path) -> bytes:
    """Return the operator's private key from a file, made now where there is none: under its name once it is synced.

    Raises: KeyFileError when the file is none, or holds no key.
    """
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name[:40]}.{secrets.token_hex(4)}.part")
        try:
            create_key(part)
            with suppress(FileExistsError):  # another start was faster: its key stands
                publish_new(part, path)
        finally:
            part.unlink(missing_ok=True)
    return unlock_key(path)
