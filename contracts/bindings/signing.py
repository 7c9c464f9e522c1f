"""Signed type 2 transactions (EIP-1559) and addresses, with coincurve alone.

eth_account signs the same bytes (a test compares) but costs a second of import and 7 MB in each worker.
"""

from __future__ import annotations

from collections.abc import Sequence

from coincurve import PrivateKey
from eth_hash.auto import keccak

_TYPE = b"\x02"
_SHORT = 55
"""Longest RLP payload whose length stands in the first byte (yellow paper, appendix B)."""


def sign_transaction(
    private_key: bytes,
    *,
    chain_id: int,
    nonce: int,
    max_priority_fee: int,
    max_fee: int,
    gas: int,
    to: bytes,
    value: int,
    data: bytes,
) -> bytes:
    """Return the raw bytes; fees are wei a gas."""
    numbers = [_integer(each) for each in (chain_id, nonce, max_priority_fee, max_fee, gas)]
    fields: list[bytes | list[bytes]] = [*numbers, to, _integer(value), data, []]
    message = keccak(_TYPE + _encode(fields))
    signature = PrivateKey(private_key).sign_recoverable(message, hasher=None)
    r, s, parity = signature[:32], signature[32:64], signature[64]
    return _TYPE + _encode([*fields, _integer(parity), r.lstrip(b"\0"), s.lstrip(b"\0")])


def compute_address(private_key: bytes) -> bytes:
    """Return the 20 bytes of a private key's address."""
    return bytes(keccak(PrivateKey(private_key).public_key.format(compressed=False)[1:])[12:])


def read_nonce(raw: bytes) -> int:
    """Return the nonce of a raw transaction, type 2 or legacy."""
    is_typed = raw[0] < 0xC0
    position = _skip_header(raw, 1 if is_typed else 0)
    if is_typed:
        position = _read_item(raw, position)[1]  # the chain id comes first
    return int.from_bytes(_read_item(raw, position)[0], "big")


def _encode(item: bytes | Sequence[bytes | list[bytes]]) -> bytes:
    if isinstance(item, bytes):
        return item if len(item) == 1 and item[0] < 0x80 else _header(0x80, len(item)) + item
    payload = b"".join(_encode(each) for each in item)
    return _header(0xC0, len(payload)) + payload


def _header(base: int, length: int) -> bytes:
    if length <= _SHORT:
        return bytes([base + length])
    size = _integer(length)
    return bytes([base + _SHORT + len(size)]) + size


def _integer(value: int) -> bytes:
    return value.to_bytes((value.bit_length() + 7) // 8, "big")


def _skip_header(raw: bytes, position: int) -> int:
    length = raw[position] - 0xC0
    return position + 1 + max(0, length - _SHORT)


def _read_item(raw: bytes, position: int) -> tuple[bytes, int]:
    first = raw[position]
    if first < 0x80:
        return raw[position : position + 1], position + 1
    end = position + 1 + first - 0x80  # numbers are shorter than 56 bytes
    return raw[position + 1 : end], end
