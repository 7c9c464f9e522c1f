"""Key files: a secp256k1 private key, readable by the owner only (mode 0600).

Either one line of 64 hex digits, or an encrypted keystore (`contracts.bindings.keystore`); every command takes both.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import stat
from collections.abc import Callable
from pathlib import Path

from contracts.bindings.encoding import checksummed
from contracts.bindings.errors import KeyFileError
from contracts.bindings.keystore import decrypt_key, encrypt_key, is_keystore, read_address
from contracts.bindings.signing import compute_address
from da.core.errors import NotAFile
from da.landing import create_new, sync_directory

log = logging.getLogger("keys")
"""Without a handler a warning is one plain line on stderr."""
KEY_FILE_MODE = 0o600
"""Owner reads and writes, nobody else."""

MAX_KEY_FILE_BYTES = 65_536
"""More than any keystore takes."""

_GROUP_ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
"""Order of secp256k1's group (SEC 2, 2.4.1): a private key is 1 .. order-1."""


def create_key(path: Path, password: str | None = None) -> bytes:
    """Make a new key, write it durably, encrypted where there is a password, and return it.

    An existing file is never overwritten.
    """
    key = secrets.randbelow(_GROUP_ORDER - 1) + 1
    private_key = key.to_bytes(32, "big")
    text = private_key.hex() if password is None else encrypt_key(private_key, password)
    path.parent.mkdir(parents=True, exist_ok=True)
    _write(path, text)
    return private_key


def encrypt_file(path: Path, password: str) -> str:
    """Turn a key file into an encrypted one, in one step, and return its address; raises KeyFileError."""
    text = _read(path)
    if is_keystore(text):
        raise KeyFileError(f"{path} is encrypted already; next: nothing, or decrypt it with your wallet first")
    key = load_key(path)
    fresh = path.with_name(path.name + ".new")
    fresh.unlink(missing_ok=True)
    _write(fresh, encrypt_key(key, password))
    os.replace(fresh, path)
    sync_directory(path.parent)
    return address_of(key)


def load_key(path: Path, ask_password: Callable[[Path], str] | None = None) -> bytes:
    """Read a key file, or raise KeyFileError; warn where others may read it.

    ``ask_password`` is called for an encrypted one; without it such a file is refused.
    """
    text = _read(path)
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        log.warning("warning: %s has mode %04o, expected %04o; next: chmod 600 %s", path, mode, KEY_FILE_MODE, path)
    if is_keystore(text):
        if ask_password is None:
            raise KeyFileError(f"{path} is encrypted and no password was given; next: use the command line")
        return decrypt_key(path, text, ask_password(path))
    if not re.fullmatch(r"(0x)?[0-9a-fA-F]{64}", text):
        raise _create_no_key(path, len(text), "characters")
    key = int(text, 16)
    if not 0 < key < _GROUP_ORDER:
        raise KeyFileError(f"{path} holds a number outside 1 .. group order - 1; next: make another key")
    return key.to_bytes(32, "big")


def load_address(path: Path, ask_password: Callable[[Path], str] | None = None) -> str:
    """Return the address of a key file; an encrypted one names it without its password."""
    text = _read(path)
    return read_address(path, text) if is_keystore(text) else address_of(load_key(path, ask_password))


def address_of(private_key: bytes) -> str:
    """Return the checksummed address of a private key."""
    return checksummed("0x" + compute_address(private_key).hex())


def _read(path: Path) -> str:
    try:
        # A device has no end, and a pipe may never begin.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise KeyFileError(
                    f"{path} is no file; next: name your key file, or make one with `trainer keys new FILE`"
                )
            content = file.read(MAX_KEY_FILE_BYTES)
    except FileNotFoundError as e:
        raise KeyFileError(f"{path} does not exist; next: make one with `trainer keys new {path}`") from e
    except OSError as e:
        raise KeyFileError(f"{path} can't be read: {e.strerror}; next: name a key file that you may read") from e
    try:
        return content.decode("ascii").strip()
    except UnicodeDecodeError as e:
        raise _create_no_key(path, len(content), "bytes") from e


def _create_no_key(path: Path, size: int, unit: str) -> KeyFileError:
    """Return the error for a file that is something else; of its content nothing is said, which may be a secret."""
    return KeyFileError(
        f"{path} holds no key: {size} {unit}, expected one line of 64 hex digits or a keystore; next: name your key"
        " file, or make one with `trainer keys new FILE`"
    )


def _write(path: Path, text: str) -> None:
    """Write a new file; it has its name when all of it is on the medium, never before."""
    try:
        create_new(path, (text + "\n").encode("ascii"), mode=KEY_FILE_MODE)
    except (FileExistsError, NotAFile) as e:
        raise KeyFileError(f"{path} exists already; next: name another file, or use the key that is in it") from e
