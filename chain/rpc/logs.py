"""Log queries: what eth_getLogs and the filters look for, and the search over a span of blocks.

A block whose bloom excludes the query is passed over without reading its receipts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from chain.core.hashing import keccak256
from chain.core.records import Block, Log
from chain.rpc.faults import BlockPruned, InvalidParams, RangeTooWide
from chain.rpc.values import is_newest_tag, parse_data, parse_height
from chain.rpc.views import PlacedLog, place_logs
from chain.store import Snapshot

MAX_RANGE_BLOCKS = 10_000
"""Most blocks that one query reads: about 0.3 s of headers, or 50 minutes of a devnet."""
MAX_RESULTS = 10_000
"""Most logs that one query returns: about 6 MB of JSON."""
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

    def matches(self, log: Log) -> bool:
        """Say whether a log is wanted."""
        if self.addresses and log.address not in self.addresses:
            return False
        if len(self.topics) > len(log.topics):
            return False
        return all(not wanted or got in wanted for wanted, got in zip(self.topics, log.topics, strict=False))

    def may_match(self, block: Block) -> bool:
        """Say whether a block's bloom leaves room for a wanted log."""
        groups = [self.addresses, *self.topics]
        return all(not group or any(_bloom_has(block.logs_bloom, item) for item in group) for group in groups)


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
    for height in range(start, stop + 1):
        block = snapshot.block(height)
        if block is None or not query.may_match(block):
            continue
        logs = place_logs(block, snapshot.receipts(height), snapshot.timer_logs(height))
        found += [placed for placed in logs if query.matches(placed.log)]
        if len(found) > MAX_RESULTS:
            raise RangeTooWide("results", MAX_RESULTS, len(found))
    return found


def _parse_end(value: Any, newest: int, name: str) -> int | None:
    return None if value is None or is_newest_tag(value) else parse_height(value, newest, name)


def _parse_alternatives(value: Any, name: str, num_bytes: int) -> frozenset[bytes]:
    if value is None:
        return frozenset()
    items: Sequence[Any] = value if isinstance(value, list) else [value]
    if len(items) > _MAX_ALTERNATIVES:
        raise InvalidParams(f"{name} lists {len(items)} values, at most {_MAX_ALTERNATIVES}")
    return frozenset(parse_data(item, name, num_bytes) for item in items if item is not None)


def _bloom_has(bloom: bytes, item: bytes) -> bool:
    digest = keccak256(item)
    for index in (0, 2, 4):
        bit = int.from_bytes(digest[index : index + 2], "big") & 0x7FF
        if not bloom[len(bloom) - 1 - (bit >> 3)] >> (bit & 7) & 1:
            return False
    return True
