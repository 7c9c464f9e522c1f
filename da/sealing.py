"""Encryption before coding: AES-256-GCM with a key that never leaves the client (da/SPEC.md, *Sealed blobs*).

Every sealed blob has a key of its own, from the owner's key and a salt, so segments may simply be counted. The salt
is a keyed hash of the plain bytes: sealed again, they give the same blob, so a put that was cut goes on and pays once;
other bytes have another key. Who sees two blobs learns whether they are equal, and their sizes, nothing else.
Invariant: what ``unseal`` returns is what was sealed, whole and in order, or it raises.

Layout, big-endian::

    offset 0  4    magic, "AGS1"
           4  16   salt
          20  u64  size of the plain bytes
          28       segments: up to 1 MiB of cipher text and a tag of 16 bytes; one at least

Key: hash(SEAL, owner's key || salt). Nonce: segment number, 12 bytes. Associated data: the first 28 bytes.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from da.core.errors import MalformedSecret, SealBroken
from da.core.hashing import Tag, compute_hash, compute_stream_hash
from da.input_file import read_input
from da.landing import create_new, open_part
from da.slabs import MemorySource, Source

KEY_BYTES = 32
"""AES-256."""

MAX_SECRET_BYTES = 4_096
"""Of a key file: far more than it takes."""

SALT_BYTES = 16
"""Of the hash of key and plain bytes; two of 2^48 blobs have one salt with 2^-33."""

SEGMENT_BYTES = 1 << 20
"""Plain bytes that are authenticated together."""

TAG_BYTES = 16
"""Of AES-GCM."""

HEADER_BYTES = 28
"""Magic, salt and size."""

MAGIC = b"AGS1"
"""First bytes of a sealed blob; names the version."""


def compute_sealed_bytes(size_bytes: int) -> int:
    """Return the size of a sealed blob with ``size_bytes`` plain bytes."""
    return HEADER_BYTES + size_bytes + _count_segments(size_bytes) * TAG_BYTES


class SealedSource:
    """Another source, encrypted; reading the same bytes twice gives the same bytes."""

    def __init__(self, plain: Source, key: bytes) -> None:
        """Seal ``plain`` under the owner's ``key``; reads it once, for the salt."""
        salt = compute_salt(plain, key)
        self._plain = plain
        self._header = MAGIC + salt + plain.size_bytes.to_bytes(8, "big")
        self._cipher = _make_cipher(key, salt)
        self.size_bytes = compute_sealed_bytes(plain.size_bytes)

    def read_into(self, start: int, buffer: memoryview) -> None:
        """See ``Source``."""
        at = 0
        if start < HEADER_BYTES:
            part = self._header[start : start + len(buffer)]
            buffer[: len(part)] = part
            at = len(part)
        while at < len(buffer):
            index, offset = divmod(start + at - HEADER_BYTES, SEGMENT_BYTES + TAG_BYTES)
            part = self._seal_segment(index)[offset : offset + len(buffer) - at]
            buffer[at : at + len(part)] = part
            at += len(part)

    def _seal_segment(self, index: int) -> bytes:
        plain_at = index * SEGMENT_BYTES
        plain = bytearray(min(SEGMENT_BYTES, self._plain.size_bytes - plain_at))
        self._plain.read_into(plain_at, memoryview(plain))
        return self._cipher.encrypt(index.to_bytes(12, "big"), plain, self._header)


def compute_salt(plain: Source, key: bytes) -> bytes:
    """Return the salt of a blob."""

    def read_all() -> Iterator[bytes | bytearray]:
        yield key
        for start in range(0, plain.size_bytes, SEGMENT_BYTES):
            chunk = bytearray(min(SEGMENT_BYTES, plain.size_bytes - start))
            plain.read_into(start, memoryview(chunk))
            yield chunk

    return compute_stream_hash(Tag.SEAL_SALT, read_all(), num_bytes=SALT_BYTES)


def iterate_unsealed(sealed: Source, key: bytes) -> Iterator[bytes]:
    """Yield the plain bytes, segment by segment, each authenticated.

    Raises:
        SealBroken: another key, or not what was sealed.
    """
    if sealed.size_bytes < HEADER_BYTES + TAG_BYTES:
        raise SealBroken(f"{sealed.size_bytes} bytes are too few")
    header = bytearray(HEADER_BYTES)
    sealed.read_into(0, memoryview(header))
    size_bytes = int.from_bytes(header[20:28], "big")
    if header[:4] != MAGIC:
        raise SealBroken("the blob is not sealed: read it without a key")
    if compute_sealed_bytes(size_bytes) != sealed.size_bytes:
        raise SealBroken(f"{sealed.size_bytes} bytes, expected {compute_sealed_bytes(size_bytes)}")
    cipher = _make_cipher(key, bytes(header[4:20]))
    for index in range(_count_segments(size_bytes)):
        segment = bytearray(min(SEGMENT_BYTES, size_bytes - index * SEGMENT_BYTES) + TAG_BYTES)
        sealed.read_into(HEADER_BYTES + index * (SEGMENT_BYTES + TAG_BYTES), memoryview(segment))
        try:
            yield cipher.decrypt(index.to_bytes(12, "big"), segment, bytes(header))
        except InvalidTag as error:
            raise SealBroken(f"segment {index} does not open: another key, or altered bytes") from error


def seal(data: bytes | bytearray | memoryview, key: bytes) -> bytes:
    """Return ``data`` encrypted under ``key``."""
    source = SealedSource(MemorySource(data), key)
    sealed = bytearray(source.size_bytes)
    source.read_into(0, memoryview(sealed))
    return bytes(sealed)


def unseal(sealed: bytes | bytearray | memoryview, key: bytes) -> bytes:
    """Return what was sealed; raises ``SealBroken``."""
    return b"".join(iterate_unsealed(MemorySource(sealed), key))


def unseal_file(sealed: Source, path: Path, key: bytes) -> None:
    """Write the plain bytes to ``path``, which appears when all of them are authenticated; raises ``SealBroken``."""
    fd, part = open_part(path, mode=0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            for segment in iterate_unsealed(sealed, key):
                file.write(segment)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def load_secret(path: Path) -> bytes:
    """Read a key file: 64 hex digits on one line, for nobody else's eyes.

    Raises:
        MalformedSecret: it holds something else, or others may read it.
        NotAFile: it is none, or far too long.
    """
    mode = path.stat().st_mode & 0o077
    if mode:
        raise MalformedSecret(f"others may read {path} (mode {mode:03o}); chmod 600 it")
    try:
        key = bytes.fromhex(read_input(path, limit_bytes=MAX_SECRET_BYTES).decode("ascii").strip().removeprefix("0x"))
    except ValueError as error:
        raise MalformedSecret(f"{path} is not hex; expected {2 * KEY_BYTES} hex digits") from error
    if len(key) != KEY_BYTES:
        raise MalformedSecret(f"{path} has {len(key)} bytes, expected {KEY_BYTES}")
    return key


def create_secret(path: Path) -> bytes:
    """Make a new key file, durably, since what is sealed under it is lost without it; return the key.

    Raises:
        FileExistsError: there is one.
        NotAFile, OSError: it can't be written; then there is none.
    """
    key = secrets.token_bytes(KEY_BYTES)
    create_new(path, key.hex().encode() + b"\n", mode=0o600)
    return key


def _make_cipher(key: bytes, salt: bytes) -> AESGCM:
    if len(key) != KEY_BYTES or len(salt) != SALT_BYTES:
        raise MalformedSecret(f"key of {len(key)} and salt of {len(salt)} bytes, expected {KEY_BYTES} and {SALT_BYTES}")
    return AESGCM(compute_hash(Tag.SEAL, key, salt))


def _count_segments(size_bytes: int) -> int:
    return max(1, -(-size_bytes // SEGMENT_BYTES))
