"""Signatures equal eth_account's, byte by byte."""

from __future__ import annotations

from eth_account import Account
from eth_utils.address import to_checksum_address
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.bindings.keys import address_of
from contracts.bindings.signing import read_nonce, sign_transaction


@settings(max_examples=60, deadline=None)
@given(
    key=st.integers(1, 2**255).map(lambda number: number.to_bytes(32, "big")),
    chain_id=st.integers(1, 2**53),
    nonce=st.sampled_from([0, 1, 127, 128, 255, 256, 2**32, 2**64 - 2]) | st.integers(0, 2**63),
    gas=st.integers(21_000, 2**40),
    value=st.integers(0, 2**255),
    data=st.binary(max_size=80) | st.binary(min_size=250, max_size=300) | st.just(b"\x00" * 70_000),
    to=st.binary(min_size=20, max_size=20),
)
def test_raw_bytes_equal_those_of_eth_account(
    key: bytes, chain_id: int, nonce: int, gas: int, value: int, data: bytes, to: bytes
) -> None:
    raw = sign_transaction(
        key, chain_id=chain_id, nonce=nonce, max_priority_fee=7, max_fee=10**10, gas=gas, to=to, value=value, data=data
    )
    account = Account.from_key(key)
    fields = {"type": 2, "chainId": chain_id, "nonce": nonce, "gas": gas, "value": value, "data": data}
    fees = {"maxPriorityFeePerGas": 7, "maxFeePerGas": 10**10}
    signed = account.sign_transaction({**fields, **fees, "to": to_checksum_address(to)})
    assert raw == bytes(signed.raw_transaction)
    assert read_nonce(raw) == nonce
    assert address_of(key) == account.address


def test_nonce_of_a_legacy_transaction() -> None:
    account = Account.from_key(b"\x01" * 32)
    fields = {"nonce": 300, "gasPrice": 10**9, "gas": 21_000, "to": account.address, "value": 1, "chainId": 5}
    assert read_nonce(bytes(account.sign_transaction(fields).raw_transaction)) == 300
