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

_Spans = list[tuple[bool, int, int, int]]

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
        return _read_typed(raw, _split(raw, 1, _LAYOUTS[raw[0]]), sender)
    return _read_legacy(raw, _split(raw, 0, 9), sender)


def _decode_typed(raw: bytes, chain_id: int) -> Transaction:
    spans = _split(raw, 1, _LAYOUTS[raw[0]])
    got = _integer(raw, spans[0], "chain id")
    if got != chain_id:
        raise WrongChainId(chain_id, got)
    parity = _integer(raw, spans[-3], "y parity")
    if parity > 1:
        raise InvalidSignature(f"y parity is {parity}, expected 0 or 1")
    payload = raw[spans[0][1] : spans[-4][3]]
    message = keccak256(raw[:1] + rlp.encode_header(0xC0, len(payload)) + payload)
    sender = recover_sender(message, parity, _integer(raw, spans[-2], "r"), _integer(raw, spans[-1], "s"))
    return _read_typed(raw, spans, sender)


def _decode_legacy(raw: bytes, chain_id: int) -> Transaction:
    spans = _split(raw, 0, 9)
    v = _integer(raw, spans[6], "v")
    if v < _FIRST_PROTECTED_V:
        raise UnprotectedTransaction(v)
    got = (v - _FIRST_PROTECTED_V) >> 1
    if got != chain_id:
        raise WrongChainId(chain_id, got)
    tail = rlp.encode(rlp.encode_integer(chain_id)) + b"\x80\x80"
    payload = raw[spans[0][1] : spans[5][3]] + tail
    message = keccak256(rlp.encode_header(0xC0, len(payload)) + payload)
    parity = (v - _FIRST_PROTECTED_V) & 1
    sender = recover_sender(message, parity, _integer(raw, spans[7], "r"), _integer(raw, spans[8], "s"))
    return _read_legacy(raw, spans, sender)


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


def _read_typed(raw: bytes, spans: _Spans, sender: Address) -> Transaction:
    max_fee = priority = _integer(raw, spans[2], "fee")
    if raw[0] == _DYNAMIC_FEE:
        max_fee = _integer(raw, spans[3], "max fee")
        if priority > max_fee:
            raise PriorityAboveMaxFee(max_fee, priority)
    gas_limit, to, value, data, access_list, parity, r, s = spans[-8:]
    return Transaction(
        hash=keccak256(raw),
        raw=raw,
        type=raw[0],
        chain_id=_integer(raw, spans[0], "chain id"),
        sender=sender,
        nonce=_nonce(raw, spans[1]),
        max_priority_fee=Amount(priority),
        max_fee=Amount(max_fee),
        gas_limit=_integer(raw, gas_limit, "gas limit", max_bytes=8),
        to=_target(raw, to),
        value=Amount(_integer(raw, value, "value")),
        data=_string(raw, data, "data"),
        v=_integer(raw, parity, "y parity"),
        r=_integer(raw, r, "r"),
        s=_integer(raw, s, "s"),
        access_list=_access_list(raw, access_list),
    )


def _read_legacy(raw: bytes, spans: _Spans, sender: Address) -> Transaction:
    price = Amount(_integer(raw, spans[1], "gas price"))
    v = _integer(raw, spans[6], "v")
    return Transaction(
        hash=keccak256(raw),
        raw=raw,
        type=0,
        chain_id=(v - _FIRST_PROTECTED_V) >> 1,
        sender=sender,
        nonce=_nonce(raw, spans[0]),
        max_priority_fee=price,
        max_fee=price,
        gas_limit=_integer(raw, spans[2], "gas limit", max_bytes=8),
        to=_target(raw, spans[3]),
        value=Amount(_integer(raw, spans[4], "value")),
        data=_string(raw, spans[5], "data"),
        v=v,
        r=_integer(raw, spans[7], "r"),
        s=_integer(raw, spans[8], "s"),
    )


def _split(raw: bytes, start: int, num_fields: int) -> _Spans:
    try:
        spans = rlp.decode_list_spans(raw, start)
    except rlp.InvalidRlp as error:
        raise MalformedTransaction(str(error)) from error
    if len(spans) != num_fields:
        raise MalformedTransaction(f"{len(spans)} fields, expected {num_fields}")
    return spans


def _access_list(raw: bytes, span: tuple[bool, int, int, int]) -> AccessList:
    is_list, start, payload, end = span
    if not is_list:
        raise MalformedTransaction("access list is a byte string")
    if payload == end:
        return ()
    try:
        entries = rlp.decode(raw[start:end])
    except rlp.InvalidRlp as error:
        raise MalformedTransaction(f"access list: {error}") from error
    return tuple(_access_entry(entry) for entry in entries)


def _access_entry(entry: rlp.Item | int) -> tuple[Address, tuple[bytes, ...]]:
    match entry:
        case [bytes(address), list(slots)] if len(address) == _ADDRESS_BYTES:
            words = tuple(slot for slot in slots if isinstance(slot, bytes) and len(slot) == _SLOT_BYTES)
            if len(words) == len(slots):
                return Address(address), words
    raise MalformedTransaction("an entry of the access list isn't [address, [32-byte slots]]")


def _string(raw: bytes, span: tuple[bool, int, int, int], name: str) -> bytes:
    is_list, _, start, end = span
    if is_list:
        raise MalformedTransaction(f"{name} is a list")
    return raw[start:end]


def _integer(raw: bytes, span: tuple[bool, int, int, int], name: str, *, max_bytes: int = 32) -> int:
    data = _string(raw, span, name)
    if len(data) > max_bytes:
        raise MalformedTransaction(f"{name} has {len(data)} bytes, at most {max_bytes}")
    if data and data[0] == 0:
        raise MalformedTransaction(f"{name} has a leading zero")
    return int.from_bytes(data, "big")


def _nonce(raw: bytes, span: tuple[bool, int, int, int]) -> Nonce:
    nonce = _integer(raw, span, "nonce", max_bytes=8)
    if nonce > _MAX_NONCE:
        raise MalformedTransaction(f"nonce is {nonce}, at most {_MAX_NONCE}")
    return Nonce(nonce)


def _target(raw: bytes, span: tuple[bool, int, int, int]) -> Address | None:
    data = _string(raw, span, "to")
    if not data:
        return None
    if len(data) != _ADDRESS_BYTES:
        raise MalformedTransaction(f"to has {len(data)} bytes, expected {_ADDRESS_BYTES}")
    return Address(data)
