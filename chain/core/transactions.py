"""Signed Ethereum transactions: decode, check the shape, recover the sender (EIPs 155, 1559, 2930, 2).

Type 2 is ``02 || rlp([chain_id, nonce, max_priority_fee, max_fee, gas_limit, to, value, data, access_list,
y_parity, r, s])``, type 1 is ``01 || ...`` with one ``gas_price`` in place of the two fees; legacy is
``rlp([nonce, gas_price, gas_limit, to, value, data, v, r, s])`` with v = 35 + 2 * chain_id + y_parity.
Invariant: a transaction that decodes re-encodes to the same bytes.
"""

from __future__ import annotations

from coincurve import PublicKey

from chain.core import rlp
from chain.core.errors import (
    HighSignatureS,
    InvalidSignature,
    MalformedTransaction,
    PriorityAboveMaxFee,
    TransactionTooLarge,
    UnprotectedTransaction,
    UnsupportedTransactionType,
    WrongChainId,
)
from chain.core.hashing import keccak256
from chain.core.records import AccessList, Transaction
from chain.core.types import Address, Amount, Nonce

MAX_TRANSACTION_BYTES = 128 * 1024
"""As go-ethereum's pool; CometBFT's RPC would carry about 700 kB."""

GROUP_ORDER = 0xFFFFFFFF_FFFFFFFF_FFFFFFFF_FFFFFFFE_BAAEDCE6_AF48A03B_BFD25E8C_D0364141
"""Order of secp256k1 (SEC 2, 2.4.1)."""

HALF_GROUP_ORDER = GROUP_ORDER >> 1
"""Highest s (EIP-2)."""

_ACCESS_LIST = 1
_DYNAMIC_FEE = 2
_SLOT_BYTES = 32
_ADDRESS_BYTES = 20
_FIRST_PROTECTED_V = 35
_MAX_NONCE = 2**64 - 2
"""EIP-2681."""

_LAYOUTS = {_ACCESS_LIST: 11, _DYNAMIC_FEE: 12}
"""Number of fields by type; the last eight are gas limit, to, value, data, access list, y parity, r, s."""


def decode_transaction(raw: bytes, chain_id: int) -> Transaction:
    """Decode and verify a transaction for ``chain_id``; raises a subclass of InvalidTransaction."""
    if len(raw) > MAX_TRANSACTION_BYTES:
        raise TransactionTooLarge(MAX_TRANSACTION_BYTES, len(raw))
    if not raw:
        raise MalformedTransaction("no bytes")
    if raw[0] >= 0xC0:
        return _decode_legacy(raw, chain_id)
    if raw[0] not in _LAYOUTS:
        raise UnsupportedTransactionType(raw[0])
    return _decode_typed(raw, chain_id)


def restore_transaction(raw: bytes, sender: Address) -> Transaction:
    """Decode a transaction whose signature was checked when it was executed."""
    if raw[0] in _LAYOUTS:
        items, _ = _split(raw, 1, _LAYOUTS[raw[0]])
        return _read_typed(raw, items, sender, *(_integer(items[index], "") for index in (0, -3, -2, -1)))
    items, _ = _split(raw, 0, 9)
    return _read_legacy(raw, items, sender, *(_integer(items[index], "") for index in (6, 7, 8)))


def _decode_typed(raw: bytes, chain_id: int) -> Transaction:
    items, starts = _split(raw, 1, _LAYOUTS[raw[0]])
    got = _integer(items[0], "chain id")
    if got != chain_id:
        raise WrongChainId(chain_id, got)
    parity = _integer(items[-3], "y parity")
    if parity > 1:
        raise InvalidSignature(f"y parity is {parity}, expected 0 or 1")
    r = _integer(items[-2], "r")
    s = _integer(items[-1], "s")
    payload = raw[starts[0] : starts[-4]]
    message = keccak256(raw[:1] + rlp.encode_header(0xC0, len(payload)) + payload)
    return _read_typed(raw, items, recover_sender(message, parity, r, s), got, parity, r, s)


def _decode_legacy(raw: bytes, chain_id: int) -> Transaction:
    items, starts = _split(raw, 0, 9)
    v = _integer(items[6], "v")
    if v < _FIRST_PROTECTED_V:
        raise UnprotectedTransaction(v)
    got = (v - _FIRST_PROTECTED_V) >> 1
    if got != chain_id:
        raise WrongChainId(chain_id, got)
    r = _integer(items[7], "r")
    s = _integer(items[8], "s")
    payload = raw[starts[0] : starts[6]] + rlp.encode(rlp.encode_integer(chain_id)) + b"\x80\x80"
    message = keccak256(rlp.encode_header(0xC0, len(payload)) + payload)
    return _read_legacy(raw, items, recover_sender(message, (v - _FIRST_PROTECTED_V) & 1, r, s), v, r, s)


def recover_sender(message_hash: bytes, y_parity: int, r: int, s: int) -> Address:
    """Return the address whose key signed; raises HighSignatureS or InvalidSignature."""
    if s > HALF_GROUP_ORDER:
        raise HighSignatureS(HALF_GROUP_ORDER, s)
    if not 0 < r < GROUP_ORDER or s == 0:
        raise InvalidSignature("r or s is out of range")
    signature = r.to_bytes(32, "big") + s.to_bytes(32, "big") + bytes((y_parity,))
    try:
        key = PublicKey.from_signature_and_message(signature, message_hash, hasher=None)
    except ValueError as error:
        raise InvalidSignature(str(error)) from error
    return Address(keccak256(key.format(compressed=False)[1:])[12:])


def _read_typed(
    raw: bytes, items: list[rlp.Item], sender: Address, chain_id: int, parity: int, r: int, s: int
) -> Transaction:
    max_fee = priority = _integer(items[2], "fee")
    if raw[0] == _DYNAMIC_FEE:
        max_fee = _integer(items[3], "max fee")
        if priority > max_fee:
            raise PriorityAboveMaxFee(max_fee, priority)
    gas_limit, to, value, data, access_list = items[-8:-3]
    return Transaction(
        hash=keccak256(raw),
        raw=raw,
        type=raw[0],
        chain_id=chain_id,
        sender=sender,
        nonce=_nonce(items[1]),
        max_priority_fee=Amount(priority),
        max_fee=Amount(max_fee),
        gas_limit=_integer(gas_limit, "gas limit", 8),
        to=_target(to),
        value=Amount(_integer(value, "value")),
        data=_string(data, "data"),
        v=parity,
        r=r,
        s=s,
        access_list=_access_list(access_list),
    )


def _read_legacy(raw: bytes, items: list[rlp.Item], sender: Address, v: int, r: int, s: int) -> Transaction:
    price = Amount(_integer(items[1], "gas price"))
    return Transaction(
        hash=keccak256(raw),
        raw=raw,
        type=0,
        chain_id=(v - _FIRST_PROTECTED_V) >> 1,
        sender=sender,
        nonce=_nonce(items[0]),
        max_priority_fee=price,
        max_fee=price,
        gas_limit=_integer(items[2], "gas limit", 8),
        to=_target(items[3]),
        value=Amount(_integer(items[4], "value")),
        data=_string(items[5], "data"),
        v=v,
        r=r,
        s=s,
    )


def _split(raw: bytes, start: int, num_fields: int) -> tuple[list[rlp.Item], list[int]]:
    try:
        items, starts = rlp.decode_list(raw, start)
    except rlp.InvalidRlp as error:
        raise MalformedTransaction(str(error)) from error
    if len(items) != num_fields:
        raise MalformedTransaction(f"{len(items)} fields, expected {num_fields}")
    return items, starts


def _access_list(item: rlp.Item) -> AccessList:
    if isinstance(item, bytes):
        raise MalformedTransaction("access list is a byte string")
    return tuple(_access_entry(entry) for entry in item) if item else ()


def _access_entry(entry: rlp.Item) -> tuple[Address, tuple[bytes, ...]]:
    match entry:
        case [bytes(address), list(slots)] if len(address) == _ADDRESS_BYTES:
            words = tuple(slot for slot in slots if isinstance(slot, bytes) and len(slot) == _SLOT_BYTES)
            if len(words) == len(slots):
                return Address(address), words
    raise MalformedTransaction("an entry of the access list isn't [address, [32-byte slots]]")


def _string(item: rlp.Item, name: str) -> bytes:
    if isinstance(item, bytes):
        return item
    raise MalformedTransaction(f"{name} is a list")


def _integer(item: rlp.Item, name: str, max_bytes: int = 32) -> int:
    if isinstance(item, bytes) and len(item) <= max_bytes and (not item or item[0]):
        return int.from_bytes(item, "big")
    data = _string(item, name)
    if len(data) > max_bytes:
        raise MalformedTransaction(f"{name} has {len(data)} bytes, at most {max_bytes}")
    raise MalformedTransaction(f"{name} has a leading zero")


def _nonce(item: rlp.Item) -> Nonce:
    nonce = _integer(item, "nonce", 8)
    if nonce > _MAX_NONCE:
        raise MalformedTransaction(f"nonce is {nonce}, at most {_MAX_NONCE}")
    return Nonce(nonce)


def _target(item: rlp.Item) -> Address | None:
    data = _string(item, "to")
    if not data:
        return None
    if len(data) != _ADDRESS_BYTES:
        raise MalformedTransaction(f"to has {len(data)} bytes, expected {_ADDRESS_BYTES}")
    return Address(data)
