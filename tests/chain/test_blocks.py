"""Headers hash like Ethereum's, and blooms hold what they should."""

from __future__ import annotations

from typing import Any

import rlp as oracle
from eth_hash.auto import keccak
from hypothesis import given
from hypothesis import strategies as st

from chain.core.blocks import compute_bloom, encode_header, encode_receipt, seal_block
from chain.core.hashing import keccak256
from chain.core.records import Log, Receipt
from chain.core.types import Address, Amount, Hash, Height


def _receipt(number: int) -> Receipt:
    return Receipt(
        transaction=Hash(bytes((number,)) * 32),
        status=1,
        gas_used=21_000,
        cumulative_gas_used=21_000 * number,
        effective_gas_price=Amount(3),
        logs=(Log(address=Address(b"\x01" * 20), topics=(b"\x02" * 32,), data=b"x"),),
        output=b"",
        error="",
        log_index=number - 1,
    )


def _seal(**fields: Any) -> Any:
    values: dict[str, Any] = {
        "height": Height(5),
        "parent_hash": Hash(b"\x0f" * 32),
        "time_seconds": 1_700_000_000,
        "app_hash": b"\x0a" * 32,
        "proposer": Address(b"\x0c" * 20),
        "gas_limit": 30_000_000,
        "base_fee": Amount(10**9),
        "cometbft_hash": b"\x0d" * 32,
        "receipts": (_receipt(1), _receipt(2)),
        "block_logs": (),
        "size_bytes": 220,
    }
    return seal_block(**(values | fields))


def test_hash_is_keccak_of_the_shown_header() -> None:
    block = _seal()
    header = encode_header(block)
    fields = oracle.decode(header)
    assert len(fields) == 16
    assert block.hash == keccak(header)
    assert fields[0] == block.parent_hash
    assert fields[1].hex() == "1dcc4de8dec75d7aab85b567b6ccd41ad312451b948a7413f0a142fd40d49347"
    assert fields[3] == block.app_hash
    assert len(fields[6]) == 256
    assert int.from_bytes(fields[8], "big") == 5
    assert len(fields[12]) <= 32
    assert block.gas_used == 42_000
    assert block.transactions == (b"\x01" * 32, b"\x02" * 32)


def test_every_part_moves_the_hash() -> None:
    hashes = {_seal().hash}
    for fields in (
        {"height": Height(6)},
        {"parent_hash": Hash(bytes(32))},
        {"app_hash": bytes(32)},
        {"receipts": (_receipt(1),)},
        {"receipts": (_receipt(2), _receipt(1))},
        {"proposer": Address(bytes(20))},
        {"block_logs": _receipt(1).logs},
    ):
        hashes.add(_seal(**fields).hash)
    assert len(hashes) == 8


def test_bloom_of_a_known_log() -> None:
    """Each item sets the three bits that the first three 16-bit words of its hash name."""
    log = _receipt(1).logs[0]
    bloom = int.from_bytes(compute_bloom([log]), "big")
    expected = 0
    for item in (log.address, *log.topics):
        digest = keccak256(item)
        for index in (0, 2, 4):
            expected |= 1 << (((digest[index] << 8) + digest[index + 1]) % 2048)
    assert bloom == expected
    assert compute_bloom([]) == bytes(256)


@given(
    st.integers(0, 1),
    st.integers(0, 2**64),
    st.integers(0, 2**256 - 1),
    st.binary(max_size=100),
    st.lists(st.tuples(st.lists(st.binary(min_size=32, max_size=32), max_size=4), st.binary(max_size=80)), max_size=3),
)
def test_receipt_is_encoded_as_the_oracle_does(
    status: int, gas: int, price: int, output: bytes, logs: list[tuple[list[bytes], bytes]]
) -> None:
    receipt = Receipt(
        transaction=Hash(b"\x07" * 32),
        status=status,
        gas_used=gas,
        cumulative_gas_used=gas + 1,
        effective_gas_price=Amount(price),
        logs=tuple(Log(address=Address(b"\x01" * 20), topics=tuple(topics), data=data) for topics, data in logs),
        output=output,
        error="",
        log_index=0,
    )
    fields = [b"\x07" * 32, status, gas, gas + 1, price, [[b"\x01" * 20, *each] for each in logs], output]
    assert encode_receipt(receipt) == oracle.encode(fields)
