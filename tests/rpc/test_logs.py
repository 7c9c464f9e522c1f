"""What a log query costs whoever answers it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from chain.core.blocks import compute_bloom
from chain.core.hashing import keccak256
from chain.core.records import Log
from chain.core.types import Address
from chain.rpc import logs
from chain.rpc.faults import FilterNotFound, RangeTooWide
from chain.rpc.filters import MAX_ITEMS, FilterRegistry
from chain.rpc.logs import find_logs_between, may_match, parse_query
from chain.rpc.peers import UNKNOWN_PEER

ADDRESSES = [f"0x{number:040x}" for number in range(1, 1_001)]
NEWEST = 3_000


class Chain:
    """Blocks whose blooms hold one log that nobody asks for."""

    first_height = 0
    height = NEWEST

    def __init__(self) -> None:
        self.bloom = compute_bloom([Log(address=Address(b"\xee" * 20), topics=(b"\x05" * 32,), data=b"")])

    def block(self, height: int) -> Any:
        return SimpleNamespace(logs_bloom=self.bloom)

    def receipts(self, height: int) -> Any:
        raise AssertionError("the bloom excludes it")


def test_what_is_wanted_is_hashed_once_and_not_in_each_block(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[bytes] = []

    def count(data: bytes) -> Any:
        hashed.append(data)
        return keccak256(data)

    monkeypatch.setattr(logs, "keccak256", count)
    chain: Any = Chain()
    query = parse_query({"fromBlock": "0x0", "address": ADDRESSES}, NEWEST)
    assert find_logs_between(chain, query, 0, NEWEST) == []
    assert len(hashed) == len(ADDRESSES)


def test_a_search_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "QUERY_SECONDS", -1.0)
    chain: Any = Chain()
    with pytest.raises(RangeTooWide, match="3001 blocks"):
        find_logs_between(chain, parse_query({"address": ADDRESSES}, NEWEST), 0, NEWEST)


def test_a_bloom_lets_through_what_it_holds() -> None:
    log = Log(address=Address(b"\xaa" * 20), topics=(b"\x01" * 32, b"\x02" * 32), data=b"")
    bloom = compute_bloom([log])
    address, first, second = (f"0x{item.hex()}" for item in (log.address, *log.topics))
    other = "0x" + "07" * 32
    for criteria, expected in (
        ({}, True),
        ({"address": [ADDRESSES[0], address]}, True),
        ({"address": ADDRESSES[:3]}, False),
        ({"topics": [None, second]}, True),
        ({"topics": [[first, other], other]}, False),
    ):
        query = parse_query(criteria, NEWEST)
        assert may_match(bloom, query.masks) is expected, criteria
        assert may_match(bytes(256), query.masks) is (not query.masks)


def test_filters_name_a_bounded_number_of_things() -> None:
    registry = FilterRegistry(lambda: 0.0)
    chain: Any = Chain()
    query = parse_query({"address": ADDRESSES}, NEWEST)
    kept = [registry.add(query, NEWEST, UNKNOWN_PEER) for _ in range(MAX_ITEMS // len(ADDRESSES))]
    assert registry.changes(chain, kept[0]) == []
    registry.add(query, NEWEST, UNKNOWN_PEER)
    with pytest.raises(FilterNotFound):
        registry.changes(chain, kept[1])  # polled longest ago
    assert registry.changes(chain, kept[0]) == []
