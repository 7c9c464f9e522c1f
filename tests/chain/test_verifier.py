"""What the verifier says is what decoding in place says, whatever it is asked (``chain.abci.verifier``)."""

from __future__ import annotations

from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from eth_account import Account
from hypothesis import given, settings
from hypothesis import strategies as st

from chain.abci.verifier import compute_answer
from chain.abci.verifier_wire import (
    Terms,
    decode_answer,
    decode_question,
    decode_record,
    encode_batch,
    encode_record,
    encode_terms,
)
from chain.abci.wire import FrameReader
from chain.core.contracts.registry import CODECS
from chain.core.errors import InvalidTransaction
from chain.core.rounds.book import TRAINING
from chain.core.transactions import decode_transaction
from da.core import receipt
from da.core.certificate import encode_certificate, verify_certificate
from da.core.receipt import compute_receipt_message, is_signature_valid, remember_verdict
from da.core.types import BlobId, Certificate, Committee, Epoch, Height, ReceiptTerms, Seat, ShardIndex, Tier

CHAIN_ID = 4242
GENESIS_HASH = bytes(range(32))
KEYS = [Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32) for number in (1, 2, 3, 4)]
COMMITTEE = Committee(
    epoch=Epoch(3),
    seats=tuple(
        Seat(index=ShardIndex(index), key=key.public_key().public_bytes_raw(), url="") for index, key in enumerate(KEYS)
    ),
)
TERMS = Terms(chain_id=CHAIN_ID, genesis_hash=GENESIS_HASH, committees={3: COMMITTEE})


def sign(**fields: Any) -> bytes:
    return bytes(Account.sign_transaction(fields, b"\x01" * 32).raw_transaction)


@st.composite
def raw_transactions(draw: st.DrawFn) -> bytes:
    """Transactions of every kind for this chain or another, whole, changed in one byte, cut, or just bytes."""
    fields: dict[str, Any] = {
        "chainId": draw(st.sampled_from([CHAIN_ID, 1])),
        "nonce": draw(st.integers(0, 2**64 - 2)),
        "value": draw(st.integers(0, 2**256 - 1)),
        "data": draw(st.binary(max_size=300)),
        "gas": draw(st.integers(0, 2**64 - 1)),
        "to": draw(st.sampled_from([b"", b"\x11" * 20])),
    }
    kind = draw(st.integers(0, 2))
    if kind == 2:
        low, high = sorted(draw(st.tuples(st.integers(0, 2**255), st.integers(0, 2**255))))
        fields |= {"type": 2, "maxPriorityFeePerGas": low, "maxFeePerGas": high}
    else:
        fields |= {"gasPrice": draw(st.integers(0, 2**255))}
    if kind and draw(st.booleans()):
        fields["accessList"] = [{"address": "0x" + "22" * 20, "storageKeys": ["0x" + "03" * 32]}]
    if kind == 1:
        fields["type"] = 1
    raw = sign(**fields)
    match draw(st.sampled_from(["whole", "whole", "changed", "cut", "other"])):
        case "changed":
            at = draw(st.integers(0, len(raw) - 1))
            return raw[:at] + bytes([raw[at] ^ draw(st.integers(1, 255))]) + raw[at + 1 :]
        case "cut":
            return raw[: draw(st.integers(0, len(raw)))]
        case "other":
            return draw(st.binary(max_size=200))
    return raw


@settings(max_examples=60, deadline=None)
@given(st.lists(raw_transactions(), max_size=6))
def test_verdicts_equal_those_in_place(transactions: list[bytes]) -> None:
    (message,) = FrameReader().feed(compute_answer(TERMS, 7, transactions))
    number, records, _ = decode_answer(message)
    assert number == 7
    assert len(records) == len(transactions)
    for raw, record in zip(transactions, records, strict=True):
        try:
            expected = decode_transaction(raw, CHAIN_ID)
        except InvalidTransaction:
            assert not record
            continue
        assert bool(record) == (not expected.access_list)
        if record:
            assert decode_record(record, raw, CHAIN_ID) == expected


def test_questions_arrive_as_they_were_asked() -> None:
    messages = FrameReader().feed(encode_terms(TERMS) + encode_batch(9, [b"a", b"b" * 300]))
    assert decode_question(messages[0]) == TERMS
    assert decode_question(messages[1]) == (9, [b"a", b"b" * 300])


def test_no_verdicts_without_terms() -> None:
    (message,) = FrameReader().feed(compute_answer(None, 1, [sign_commit(make_certificate())]))
    assert decode_answer(message) == (1, (b"",), ())


@pytest.mark.parametrize("message", [b"\x01", b"\x93\x01", b"\x92\x01\x90", b"\xc1"])
def test_invalid_answer(message: bytes) -> None:
    with pytest.raises(ValueError):
        decode_answer(message)


def test_invalid_record() -> None:
    record = encode_record(decode_transaction(sign_commit(make_certificate()), CHAIN_ID))
    with pytest.raises(ValueError, match=f"a record of {len(record) - 1} bytes, expected {len(record)}"):
        decode_record(record[1:], b"", CHAIN_ID)


def make_certificate(*, forged_seat: int | None = None, epoch: int = 3, blob: bytes = b"\x07" * 32) -> Certificate:
    terms = ReceiptTerms(
        genesis_hash=GENESIS_HASH,
        epoch=Epoch(epoch),
        blob=BlobId(blob),
        size_bytes=10,
        tier=Tier.HOT,
        expiry=Height(50),
    )
    signatures = []
    for seat, key in enumerate(KEYS):
        message = compute_receipt_message(terms, ShardIndex(seat))
        signatures.append((ShardIndex(seat), key.sign(b"another" if seat == forged_seat else message)))
    return Certificate(terms=terms, signatures=tuple(signatures))


def sign_commit(certificate: Certificate) -> bytes:
    arguments = (1, 0, b"\x11" * 32, b"\x22" * 32, encode_certificate(certificate), 100, 5)
    data = CODECS[TRAINING].by_name["commit"].encode_inputs(arguments)
    return sign(chainId=CHAIN_ID, nonce=0, to=bytes(TRAINING), value=0, data=data, gas=10**6, gasPrice=10**9)


def test_certificate_is_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    certificate = make_certificate(blob=b"\x08" * 32)
    (message,) = FrameReader().feed(compute_answer(TERMS, 1, [sign_commit(certificate)]))
    receipt._VERDICTS.clear()
    _, _, signed = decode_answer(message)
    assert len(signed) == len(KEYS)
    for key, signature, text in signed:
        remember_verdict(key, signature, text, is_valid=True)

    def fail(key: bytes) -> Any:
        raise AssertionError("checked again")

    monkeypatch.setattr(receipt, "VerifyKey", fail)
    verify_certificate(certificate, COMMITTEE, genesis_hash=GENESIS_HASH, height=Height(1))


@pytest.mark.parametrize("certificate", [{"forged_seat": 0}, {"forged_seat": 3}, {"epoch": 2}, {"epoch": 2**64 - 1}])
def test_nothing_is_said_of_a_certificate_that_is_not_whole(certificate: dict[str, int]) -> None:
    (message,) = FrameReader().feed(compute_answer(TERMS, 1, [sign_commit(make_certificate(**certificate))]))
    _, records, signed = decode_answer(message)
    assert records[0]
    assert signed == ()


def test_nothing_is_said_of_a_seat_that_the_committee_lacks() -> None:
    small = Committee(epoch=Epoch(3), seats=COMMITTEE.seats[:3])
    terms = Terms(chain_id=CHAIN_ID, genesis_hash=GENESIS_HASH, committees={3: small})
    (message,) = FrameReader().feed(compute_answer(terms, 1, [sign_commit(make_certificate())]))
    _, records, signed = decode_answer(message)
    assert records[0]
    assert signed == ()


def test_memory_of_signatures_is_bounded() -> None:
    key, signature = KEYS[0].public_key().public_bytes_raw(), KEYS[0].sign(b"first")
    receipt._VERDICTS.clear()
    assert is_signature_valid(key, signature, b"first")
    for number in range(receipt.REMEMBERED_SIGNATURES):
        remember_verdict(b"k", b"s", b"%d" % number, is_valid=False)
    assert len(receipt._VERDICTS) == receipt.REMEMBERED_SIGNATURES
    assert (key, signature, b"first") not in receipt._VERDICTS
    assert is_signature_valid(key, signature, b"first")
    receipt._VERDICTS.clear()
