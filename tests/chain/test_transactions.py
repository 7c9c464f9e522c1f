"""Transactions: decoded like eth-account signs them, and refused by name."""

from __future__ import annotations

from typing import Any

import pytest
from eth_account import Account
from hypothesis import given, settings
from hypothesis import strategies as st

from chain.core import errors, rlp
from chain.core.hashing import keccak256
from chain.core.transactions import (
    GROUP_ORDER,
    MAX_TRANSACTION_BYTES,
    decode_transaction,
    restore_transaction,
)

CHAIN_ID = 4242


def _fields(raw: bytes) -> list[Any]:
    items = rlp.decode(raw[1:] if raw[0] == 2 else raw)
    assert isinstance(items, list)
    return items


def _join(items: list[Any], prefix: bytes = b"\x02") -> bytes:
    return prefix + rlp.encode(items)


@settings(max_examples=40, deadline=None)
@given(
    key=st.integers(1, GROUP_ORDER - 1),
    nonce=st.integers(0, 2**64 - 2),
    value=st.integers(0, 2**256 - 1),
    data=st.binary(max_size=100),
    gas=st.integers(0, 2**64 - 1),
    fees=st.tuples(st.integers(0, 2**128), st.integers(0, 2**128)).map(sorted),
    is_legacy=st.booleans(),
    is_creation=st.booleans(),
)
def test_agrees_with_eth_account(
    key: int, nonce: int, value: int, data: bytes, gas: int, fees: list[int], is_legacy: bool, is_creation: bool
) -> None:
    account = Account.from_key(key.to_bytes(32, "big"))
    request: dict[str, Any] = {"chainId": CHAIN_ID, "nonce": nonce, "value": value, "data": data, "gas": gas}
    request["to"] = b"" if is_creation else b"\x11" * 20
    if is_legacy:
        request["gasPrice"] = fees[1]
    else:
        request |= {"type": 2, "maxPriorityFeePerGas": fees[0], "maxFeePerGas": fees[1]}
    signed = account.sign_transaction(request)
    got = decode_transaction(bytes(signed.raw_transaction), CHAIN_ID)
    assert got.sender.hex() == account.address[2:].lower()
    assert got.hash == bytes(signed.hash)
    assert (got.nonce, got.value, got.data, got.gas_limit) == (nonce, value, data, gas)
    assert (got.v, got.r, got.s) == (signed.v, signed.r, signed.s)
    assert got.to == (None if is_creation else b"\x11" * 20)
    assert got.max_fee == fees[1]
    assert got.max_priority_fee == (fees[1] if is_legacy else fees[0])
    assert restore_transaction(got.raw, got.sender) == got


def test_invalid_chain_id_names_both(alice: Any) -> None:
    for fields in ({}, {"gasPrice": 10**9}):
        with pytest.raises(errors.WrongChainId, match=r"chain id 4242, this is chain id 1; next: sign it for 1$"):
            decode_transaction(alice.raw(0, **fields), 1)


def test_invalid_unprotected_legacy() -> None:
    request = {"nonce": 0, "to": b"\x11" * 20, "value": 1, "gas": 21_000, "gasPrice": 1}
    raw = bytes(Account.sign_transaction(request, b"\x01" * 32).raw_transaction)
    with pytest.raises(errors.UnprotectedTransaction, match="EIP-155"):
        decode_transaction(raw, CHAIN_ID)


@pytest.mark.parametrize("fees", [{}, {"gasPrice": 10**9, "type": 1}])
def test_access_list_is_read(fees: dict[str, Any], alice: Any) -> None:
    keys = ["0x" + "00" * 31 + "07", "0x" + "ff" * 32]
    raw = alice.raw(0, accessList=[{"address": "0x" + "11" * 20, "storageKeys": keys}], **fees)
    got = decode_transaction(raw, CHAIN_ID)
    assert got.sender == alice.address
    assert got.access_list == ((b"\x11" * 20, tuple(bytes.fromhex(key[2:]) for key in keys)),)
    assert restore_transaction(raw, got.sender) == got
    if fees:
        assert (got.type, got.max_fee, got.max_priority_fee) == (1, 10**9, 10**9)


@pytest.mark.parametrize(
    "entry",
    [b"\x11" * 20, [b"\x11" * 20], [b"\x11" * 19, []], [b"\x11" * 20, [b"\x01"]], [[], []], [b"\x11" * 20, [[]]]],
)
def test_invalid_access_list(entry: Any, alice: Any) -> None:
    items = _fields(alice.raw(0))
    items[8] = [entry]
    with pytest.raises(errors.MalformedTransaction, match="access list"):
        decode_transaction(_join(items), CHAIN_ID)


@pytest.mark.parametrize("kind", [0, 3, 4, 0x7F])
def test_invalid_type(kind: int, alice: Any) -> None:
    with pytest.raises(errors.UnsupportedTransactionType, match=f"type {kind} "):
        decode_transaction(bytes((kind,)) + alice.raw(0)[1:], CHAIN_ID)


def test_invalid_type_that_ethereum_has_is_named(alice: Any, set_code: bytes) -> None:
    """Whatever follows the type's byte."""
    said = (
        r"transaction type 4 \(EIP-7702, set code\) is not supported;"
        r" next: send type 2 \(EIP-1559\), type 1 \(EIP-2930\) or a legacy one with a chain id \(EIP-155\)$"
    )
    for raw in (set_code, b"\x04", b"\x04\xc0", set_code[:-1]):
        with pytest.raises(errors.UnsupportedTransactionType, match=said):
            decode_transaction(raw, CHAIN_ID)
    with pytest.raises(errors.UnsupportedTransactionType, match=r"type 3 \(EIP-4844, blobs\) is not"):
        decode_transaction(b"\x03\xc0", CHAIN_ID)


def test_invalid_high_s_twin(alice: Any) -> None:
    items = _fields(alice.raw(0))
    s = int.from_bytes(items[11], "big")
    items[11] = rlp.encode_integer(GROUP_ORDER - s)
    items[9] = b"" if items[9] else b"\x01"
    with pytest.raises(errors.HighSignatureS):
        decode_transaction(_join(items), CHAIN_ID)


@pytest.mark.parametrize(
    ("index", "value"),
    [(10, b""), (11, b""), (10, rlp.encode_integer(GROUP_ORDER)), (10, rlp.encode_integer(5)), (9, b"\x02")],
)
def test_invalid_signature(index: int, value: bytes, alice: Any) -> None:
    items = _fields(alice.raw(0))
    items[index] = value
    with pytest.raises(errors.InvalidSignature):
        decode_transaction(_join(items), CHAIN_ID)


@pytest.mark.parametrize(
    ("index", "value", "why"),
    [
        (1, b"\x00\x01", "leading zero"),
        (1, b"\xff" * 8, "nonce is"),
        (4, b"\x01" * 9, "gas limit has 9 bytes"),
        (5, b"\x01" * 19, "to has 19 bytes"),
        (6, b"\x01" * 33, "value has 33 bytes"),
        (7, [], "data is a list"),
        (8, b"", "access list is a byte string"),
    ],
)
def test_invalid_shape(index: int, value: Any, why: str, alice: Any) -> None:
    items = _fields(alice.raw(0))
    items[index] = value
    with pytest.raises(errors.MalformedTransaction, match=why):
        decode_transaction(_join(items), CHAIN_ID)


def test_invalid_fees(alice: Any) -> None:
    items = _fields(alice.raw(0))
    items[2], items[3] = items[3], items[2]
    with pytest.raises(errors.PriorityAboveMaxFee):
        decode_transaction(_join(items), CHAIN_ID)


def test_invalid_number_of_fields(alice: Any) -> None:
    with pytest.raises(errors.MalformedTransaction, match="11 fields, expected 12"):
        decode_transaction(_join(_fields(alice.raw(0))[:-1]), CHAIN_ID)


def test_invalid_size(alice: Any) -> None:
    raw = alice.raw(0, data=bytes(MAX_TRANSACTION_BYTES))
    with pytest.raises(errors.TransactionTooLarge, match=f"at most {MAX_TRANSACTION_BYTES}"):
        decode_transaction(raw, CHAIN_ID)


@given(st.binary(max_size=200))
def test_invalid_bytes_are_always_named(data: bytes) -> None:
    for prefix in (b"", b"\x02"):
        with pytest.raises(errors.InvalidTransaction):
            decode_transaction(prefix + data, CHAIN_ID)


@settings(max_examples=60)
@given(position=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_one_flipped_bit_is_refused_or_another_transaction(alice: Any, position: int, bit: int) -> None:
    raw = alice.raw(3, data=b"hello")
    flipped = bytearray(raw)
    flipped[position % len(raw)] ^= 1 << bit
    try:
        got = decode_transaction(bytes(flipped), CHAIN_ID)
    except errors.InvalidTransaction:
        return
    assert got.sender != alice.address
    assert got.hash == keccak256(bytes(flipped)) != keccak256(raw)


def test_codes_are_unique() -> None:
    codes: dict[int, type] = {}
    pending: list[type[errors.InvalidTransaction]] = errors.InvalidTransaction.__subclasses__()
    for kind in pending:
        assert kind.code not in (0, errors.CODE_EXECUTION_FAILED, errors.InvalidTransaction.code)
        assert codes.setdefault(kind.code, kind) is kind
        assert kind.__name__ in (errors.__doc__ or "")
