"""Signed Ethereum transactions: decode, check the shape, recover the sender (EIP-155, EIP-1559, EIP-2).

Type 2 is ``02 || rlp([chain_id, nonce, max_priority_fee, max_fee, gas_limit, to, value, data, access_list,
y_parity, r, s])``; legacy is ``rlp([nonce, gas_price, gas_limit, to, value, data, v, r, s])`` with
v = 35 + 2 * chain_id + y_parity.  Invariant: a transaction that decodes re-encodes to the same bytes.
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
    UnsupportedAccessList,
    UnsupportedTransactionType,
    WrongChainId,
)
from chain.core.hashing import keccak256
from chain.core.records import Transaction
from chain.core.types import Address, Amount, Nonce

MAX_TRANSACTION_BYTES = 128 * 1024
"""As go-ethereum's pool; CometBFT's RPC would carry about 700 kB."""

GROUP_ORDER = 0xFFFFFFFF_FFFFFFFF_FFFFFFFF_FFFFFFFE_BAAEDCE6_AF48A03B_BFD25E8C_D0364141
"""Order of secp256k1 (SEC 2, 2.4.1)."""

HALF_GROUP_ORDER = GROUP_ORDER >> 1
"""Highest s (EIP-2)."""

_DYNAMIC_FEE = 2
_ADDRESS_BYTES = 20
_FIRST_PROTECTED_V = 35
_MAX_NONCE = 2**64 - 2
"""EIP-2681."""

_Spans = list[tuple[bool, int, int, int]]


def decode_transaction(raw: bytes, chain_id: int) -> Transaction:
    """Decode and verify a transaction for ``chain_id``; raises a subclass of InvalidTransaction."""
    if len(raw) > MAX_TRANSACTION_BYTES:
        raise TransactionTooLarge(MAX_TRANSACTION_BYTES, len(raw))
    if not raw:
        raise MalformedTransaction("no bytes")
    if raw[0] >= 0xC0:
        return _decode_legacy(raw, chain_id)
    if raw[0] != _DYNAMIC_FEE:
        raise UnsupportedTransactionType(raw[0])
    return _decode_dynamic_fee(raw, chain_id)


def restore_transaction(raw: bytes, sender: Address) -> Transaction:
    """Decode a transaction whose signature was checked when it was executed."""
    if raw[0] == _DYNAMIC_FEE:
        return _read_dynamic_fee(raw, _split(raw, 1, 12), sender)
    return _read_legacy(raw, _split(raw, 0, 9), sender)


def _decode_dynamic_fee(raw: bytes, chain_id: int) -> Transaction:
    spans = _split(raw, 1, 12)
    got = _integer(raw, spans[0], "chain id")
    if got != chain_id:
        raise WrongChainId(chain_id, got)
    parity = _integer(raw, spans[9], "y parity")
    if parity > 1:
        raise InvalidSignature(f"y parity is {parity}, expected 0 or 1")
    payload = raw[spans[0][1] : spans[8][3]]
    message = keccak256(b"\x02" + rlp.encode_header(0xC0, len(payload)) + payload)
    sender = recover_sender(message, parity, _integer(raw, spans[10], "r"), _integer(raw, spans[11], "s"))
    return _read_dynamic_fee(raw, spans, sender)


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


def _read_dynamic_fee(raw: bytes, spans: _Spans, sender: Address) -> Transaction:
    is_list, _, start, end = spans[8]
    if not is_list:
        raise MalformedTransaction("access list is a byte string")
    if start != end:
        raise UnsupportedAccessList(_count_items(raw, start, end))
    priority = _integer(raw, spans[2], "max priority fee")
    max_fee = _integer(raw, spans[3], "max fee")
    if priority > max_fee:
        raise PriorityAboveMaxFee(max_fee, priority)
    return Transaction(
        hash=keccak256(raw),
        raw=raw,
        type=_DYNAMIC_FEE,
        chain_id=_integer(raw, spans[0], "chain id"),
        sender=sender,
        nonce=_nonce(raw, spans[1]),
        max_priority_fee=Amount(priority),
        max_fee=Amount(max_fee),
        gas_limit=_integer(raw, spans[4], "gas limit", max_bytes=8),
        to=_target(raw, spans[5]),
        value=Amount(_integer(raw, spans[6], "value")),
        data=_string(raw, spans[7], "data"),
        v=_integer(raw, spans[9], "y parity"),
        r=_integer(raw, spans[10], "r"),
        s=_integer(raw, spans[11], "s"),
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


def _count_items(raw: bytes, start: int, end: int) -> int:
    count = 0
    while start < end:
        try:
            start = rlp.read_header(raw, start, end)[2]
        except rlp.InvalidRlp as error:
            raise MalformedTransaction(str(error)) from error
        count += 1
    return count


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
