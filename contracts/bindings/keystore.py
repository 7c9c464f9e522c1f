"""Encrypted key files: Ethereum's keystore, version 3 (Web3 Secret Storage), as geth and wallets read and write it.

scrypt makes each guess of the password cost a quarter of a gigabyte of memory for about a second.  Neither key nor
password is ever part of a message.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from contracts.bindings.encoding import checksummed
from contracts.bindings.errors import KeyFileError
from contracts.bindings.signing import compute_address

VERSION = 3
WORK_FACTOR = 1 << 18
"""scrypt's n, as geth's standard keystore."""
MAX_SCRYPT_WORK = 1 << 24
"""n * r * p, and n * r alone at 128 bytes of memory each: eight times geth's; a file may ask for hours otherwise."""
MAX_PBKDF2_ROUNDS = 10_000_000
"""Wallets use a quarter of a million."""
DERIVED_BYTES = 32
"""Of the derived key: half of it encrypts, half of it is part of the MAC."""
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
    _check_work(path, document)
    try:
        key = bytes(Account.decrypt(document, password))
    except ValueError as error:
        if "MAC" in str(error):
            raise KeyFileError(f"{path}: wrong password; next: try another one") from None
        raise KeyFileError(f"{path} is no keystore that can be read; next: take your backup of it") from error
    except (KeyError, TypeError, NotImplementedError) as error:
        raise KeyFileError(f"{path} is no keystore that can be read; next: take your backup of it") from error
    expected = checksummed("0x" + compute_address(key).hex())
    if document.get("address") and read_address(path, text) != expected:
        raise KeyFileError(
            f"{path} names {read_address(path, text)}, its key is that of {expected}; next: find out who changed the"
            " file, and send nothing to the address it names"
        )
    return key


def _check_work(path: Path, document: dict[str, Any]) -> None:
    """Refuse a file that asks for more work than any wallet's, before any of it is done."""
    crypto = document.get("crypto") or document.get("Crypto")
    parameters = crypto.get("kdfparams") if isinstance(crypto, dict) else None
    if not isinstance(parameters, dict):
        return  # no keystore: said by whoever reads it
    numbers = {name: parameters.get(name, 1) for name in ("n", "r", "p", "c", "dklen")}
    if not all(isinstance(number, int) and number > 0 for number in numbers.values()):
        raise KeyFileError(f"{path} is no keystore that can be read; next: take your backup of it")
    work = numbers["n"] * numbers["r"] * numbers["p"]
    if work > MAX_SCRYPT_WORK or numbers["c"] > MAX_PBKDF2_ROUNDS or numbers["dklen"] > DERIVED_BYTES:
        raise KeyFileError(
            f"{path} asks for scrypt n*r*p {work}, pbkdf2 c {numbers['c']} and {numbers['dklen']} bytes, at most"
            f" {MAX_SCRYPT_WORK}, {MAX_PBKDF2_ROUNDS} and {DERIVED_BYTES}; next: export it again with your wallet"
        )


def read_address(path: Path, text: str) -> str:
    """Return the address that a keystore names, without its password."""
    address = str(_parse(path, text).get("address", "")).removeprefix("0x")
    if not re.fullmatch("[0-9a-fA-F]{40}", address):
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
