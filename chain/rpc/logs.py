"""Log queries: what eth_getLogs and the filters look for, and the search over a span of blocks.

A block whose bloom excludes the query is passed over without reading its receipts.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from chain.core.hashing import keccak256
from chain.core.records import Log
from chain.rpc.faults import BlockPruned, InvalidParams, RangeTooWide
from chain.rpc.values import is_newest_tag, parse_data, parse_height
from chain.rpc.views import PlacedLog, place_logs
from chain.store import Snapshot

MAX_RANGE_BLOCKS = 10_000
"""Most blocks that one query reads: about 0.3 s of headers, or 50 minutes of a devnet."""
MAX_RESULTS = 10_000
"""Most logs that one query returns: about 6 MB of JSON."""
QUERY_SECONDS = 5.0
"""Longest search: what matches many blooms has many receipts read."""
_MAX_TOPICS = 4
_MAX_ALTERNATIVES = 1_000
"""Addresses, or values of one topic, in one query."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogQuery:
    """Which logs are wanted."""

    from_height: int | None
    """None: the newest block when the query runs."""
    to_height: int | None
    """None: the newest block when the query runs."""
    block_hash: bytes | None
    """Exactly one block, instead of a span."""
    addresses: frozenset[bytes]
    """Empty: any."""
    topics: tuple[frozenset[bytes], ...]
    """By position; an empty set: any."""
    masks: tuple[tuple[int, ...], ...] = field(init=False)
    """Bloom bits of each wanted item, by address and by topic: hashed once, not in each block."""

    def __post_init__(self) -> None:
        """Hash what is wanted."""
        groups = (self.addresses, *self.topics)
        masks = tuple(tuple({_compute_mask(item) for item in group}) for group in groups if group)
        object.__setattr__(self, "masks", masks)

    @property
    def num_items(self) -> int:
        """Return how many addresses and topics it names: what it costs to keep, and to ask in each block."""
        return len(self.addresses) + sum(map(len, self.topics))

    def matches(self, log: Log) -> bool:
        """Say whether a log is wanted."""
        if self.addresses and log.address not in self.addresses:
            return False
        if len(self.topics) > len(log.topics):
            return False
        return all(not wanted or got in wanted for wanted, got in zip(self.topics, log.topics, strict=False))


def parse_query(criteria: Any, newest: int) -> LogQuery:
    """Read the filter object of eth_getLogs and eth_newFilter."""
    if not isinstance(criteria, dict):
        raise InvalidParams(f"filter is {str(criteria)[:80]!r}, expected an object")
    block_hash = criteria.get("blockHash")
    if block_hash is not None and ("fromBlock" in criteria or "toBlock" in criteria):
        raise InvalidParams("a filter names either blockHash or fromBlock and toBlock, not both")
    topics = criteria.get("topics") or []
    if not isinstance(topics, list) or len(topics) > _MAX_TOPICS:
        raise InvalidParams(f"topics is {str(topics)[:80]!r}, expected a list of at most {_MAX_TOPICS}")
    return LogQuery(
        from_height=_parse_end(criteria.get("fromBlock"), newest, "fromBlock"),
        to_height=_parse_end(criteria.get("toBlock"), newest, "toBlock"),
        block_hash=None if block_hash is None else parse_data(block_hash, "blockHash", 32),
        addresses=_parse_alternatives(criteria.get("address"), "address", 20),
        topics=tuple(_parse_alternatives(topic, "topics", 32) for topic in topics),
    )


def find_logs(snapshot: Snapshot, query: LogQuery) -> list[PlacedLog]:
    """Run a query over its own span."""
    if query.block_hash is not None:
        height = snapshot.height_of_block_hash(query.block_hash)
        if height is None:
            raise InvalidParams(f"unknown block 0x{query.block_hash.hex()}")
        return find_logs_between(snapshot, query, height, height)
    newest = snapshot.height
    if query.from_height is not None and query.to_height is not None and query.from_height > query.to_height:
        raise InvalidParams(f"invalid block range: fromBlock {query.from_height} is above toBlock {query.to_height}")
    start = newest if query.from_height is None else query.from_height
    stop = newest if query.to_height is None else min(query.to_height, newest)
    return find_logs_between(snapshot, query, start, stop)


def find_logs_between(snapshot: Snapshot, query: LogQuery, start: int, stop: int) -> list[PlacedLog]:
    """Return the wanted logs of blocks start .. stop, both included."""
    if stop - start + 1 > MAX_RANGE_BLOCKS:
        raise RangeTooWide("blocks", MAX_RANGE_BLOCKS, stop - start + 1)
    if start < snapshot.first_height and start <= stop:
        raise BlockPruned(start, snapshot.first_height)
    found: list[PlacedLog] = []
    deadline = time.monotonic() + QUERY_SECONDS
    for height in range(start, stop + 1):
        if time.monotonic() > deadline:
            raise RangeTooWide(f"blocks in {QUERY_SECONDS:.0f} s", height - start, stop - start + 1)
        block = snapshot.block(height)
        if block is None or not may_match(block.logs_bloom, query.masks):
            continue
        logs = place_logs(block, snapshot.receipts(height), snapshot.timer_logs(height))
        found += [placed for placed in logs if query.matches(placed.log)]
        if len(found) > MAX_RESULTS:
            raise RangeTooWide("results", MAX_RESULTS, len(found))
    return found


def may_match(logs_bloom: bytes, masks: tuple[tuple[int, ...], ...]) -> bool:
    """Say whether a block's bloom leaves room for a log with one item of each group."""
    bloom = int.from_bytes(logs_bloom, "big")
    if not bloom:  # no log at all, as most blocks
        return not masks
    return all(any(bloom & mask == mask for mask in group) for group in masks)


def _parse_end(value: Any, newest: int, name: str) -> int | None:
    return None if value is None or is_newest_tag(value) else parse_height(value, newest, name)


def _parse_alternatives(value: Any, name: str, num_bytes: int) -> frozenset[bytes]:
    if value is None:
        return frozenset()
    items: Sequence[Any] = value if isinstance(value, list) else [value]
    if len(items) > _MAX_ALTERNATIVES:
        raise InvalidParams(f"{name} lists {len(items)} values, at most {_MAX_ALTERNATIVES}")
    return frozenset(parse_data(item, name, num_bytes) for item in items if item is not None)


def _compute_mask(item: bytes) -> int:
    """Return the three bits that an item sets in a bloom of 2,048 (yellow paper 4.3.1)."""
    digest = keccak256(item)
    mask = 0
    for index in (0, 2, 4):
        mask |= 1 << (int.from_bytes(digest[index : index + 2], "big") & 0x7FF)
    return mask
