"""Key files: one line with a secp256k1 private key, 32 bytes in hex, readable by the owner only (mode 0600)."""

from __future__ import annotations

import os
import re
import secrets
import stat
import warnings
from pathlib import Path

from contracts.bindings.encoding import checksummed
from contracts.bindings.errors import KeyFileError
from contracts.bindings.signing import compute_address

KEY_FILE_MODE = 0o600
"""Owner reads and writes, nobody else."""

_GROUP_ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
"""Order of secp256k1's group (SEC 2, 2.4.1): a private key is 1 .. order-1."""


def create_key(path: Path) -> bytes:
    """Make a new key, write it durably and return it; an existing file is never overwritten."""
    key = secrets.randbelow(_GROUP_ORDER - 1) + 1
    private_key = key.to_bytes(32, "big")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, KEY_FILE_MODE)
    except FileExistsError as e:
        raise KeyFileError(f"{path} exists already; next: name another file, or use the key that is in it") from e
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(private_key.hex() + "\n")
        file.flush()
        os.fsync(file.fileno())
    return private_key


def load_key(path: Path) -> bytes:
    """Read a key file, or raise KeyFileError; warn where others may read it."""
    try:
        text = path.read_text(encoding="ascii").strip()
        mode = stat.S_IMODE(path.stat().st_mode)
    except FileNotFoundError as e:
        raise KeyFileError(f"{path} does not exist; next: make one with `trainer keys new {path}`") from e
    except (OSError, UnicodeDecodeError) as e:
        raise KeyFileError(f"{path} can't be read: {e}") from e
    if not re.fullmatch(r"(0x)?[0-9a-fA-F]{64}", text):
        raise KeyFileError(f"{path} holds {len(text)} characters, expected one line of 64 hex digits")
    key = int(text, 16)
    if not 0 < key < _GROUP_ORDER:
        raise KeyFileError(f"{path} holds a number outside 1 .. group order - 1; next: make another key")
    if mode & 0o077:
        warnings.warn(f"{path} has mode {mode:04o}, expected {KEY_FILE_MODE:04o}: chmod 600 {path}", stacklevel=2)
    return key.to_bytes(32, "big")


def address_of(private_key: bytes) -> str:
    """Return the checksummed address of a private key."""
    return checksummed("0x" + compute_address(private_key).hex())
