"""Encrypted key files: Ethereum's keystore, version 3 (Web3 Secret Storage), as geth and wallets read and write it.

scrypt makes each guess of the password cost a quarter of a gigabyte of memory for about a second.  Neither key nor
password is ever part of a message.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from contracts.bindings.encoding import checksummed
from contracts.bindings.errors import KeyFileError

VERSION = 3
WORK_FACTOR = 1 << 18
"""scrypt's n, as geth's standard keystore."""
MIN_PASSWORD_CHARACTERS = 8
"""Fewer are guessed whatever a guess costs."""


def is_keystore(text: str) -> bool:
    """Say whether a key file's text is a keystore rather than a bare key."""
    return text.lstrip().startswith("{")


def encrypt_key(private_key: bytes, password: str, *, work_factor: int = WORK_FACTOR) -> str:
    """Return the keystore of a key, one line of JSON; raises KeyFileError for a password that is too short."""
    from eth_account import Account

    if len(password) < MIN_PASSWORD_CHARACTERS:
        raise KeyFileError(
            f"the password has {len(password)} characters, expected at least {MIN_PASSWORD_CHARACTERS}; next: choose a"
            " longer one"
        )
    return json.dumps(Account.encrypt(private_key, password, kdf="scrypt", iterations=work_factor))


def decrypt_key(path: Path, text: str, password: str) -> bytes:
    """Return the key of a keystore; raises KeyFileError that names the file and never the password."""
    from eth_account import Account

    document = _parse(path, text)
    try:
        return bytes(Account.decrypt(document, password))
    except ValueError as error:
        if "MAC" in str(error):
            raise KeyFileError(f"{path}: wrong password; next: try another one") from None
        raise KeyFileError(f"{path} is no keystore that can be read; next: take your backup of it") from error
    except (KeyError, TypeError, NotImplementedError) as error:
        raise KeyFileError(f"{path} is no keystore that can be read; next: take your backup of it") from error


def read_address(path: Path, text: str) -> str:
    """Return the address that a keystore names, without its password."""
    address = str(_parse(path, text).get("address", "")).removeprefix("0x")
    if len(address) != 40:  # hex digits of 20 bytes
        raise KeyFileError(f"{path} names no address; next: `trainer keys show {path}` with its password")
    return checksummed("0x" + address)


def _parse(path: Path, text: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except ValueError as error:
        raise KeyFileError(f"{path} is no keystore: no JSON; next: take your backup of it") from error
    if not isinstance(document, dict) or document.get("version") != VERSION:
        got = document.get("version") if isinstance(document, dict) else None
        raise KeyFileError(f"{path} is a keystore of version {got}, expected {VERSION}; next: export it again")
    return document
