"""Which way to a seat is taken, and how often it is asked for."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any
from unittest import mock

import pytest

from da import node_calls
from da.core.errors import FaultKind, SeatFailed, SeatFault
from da.core.types import ShardIndex
from da.counting import Traffic
from da.links import BULK_MIN_BYTES, SeatLinks
from da.memory import BufferPool


@pytest.fixture
def links() -> SeatLinks:
    return SeatLinks(Traffic())


async def test_seats_of_one_node_ask_once_and_all_take_its_port(links: SeatLinks, fakes: Any) -> None:
    seat = fakes.make_committee(1, ["http://127.0.0.1:9"]).seats[0]
    seats = [dataclasses.replace(seat, index=ShardIndex(index)) for index in range(3)]
    calls = 0

    async def answer(*_: Any, **__: Any) -> int:
        nonlocal calls
        calls += 1
        await asyncio.sleep(0)
        return 5

    with mock.patch.object(node_calls, "fetch_bulk_port", answer):
        found = await asyncio.gather(*(links._find_port(each) for each in seats))
    assert found == [("127.0.0.1", 5)] * 3
    assert calls == 1
    await links.close()


async def test_a_node_without_the_port_is_not_asked_for_each_shard(links: SeatLinks, fakes: Any) -> None:
    seat = fakes.make_committee(1, ["http://127.0.0.1:9"]).seats[0]
    failure = SeatFailed(SeatFault(seat=0, url=seat.url, kind=FaultKind.UNREACHABLE, reason="refused"))
    for outcome in (None, failure):
        links._asked.clear()
        with mock.patch.object(node_calls, "fetch_bulk_port", side_effect=[outcome]) as asked:
            for _ in range(3):
                assert await links._connect(seat, BULK_MIN_BYTES) is None
        assert asked.call_count == 1
    await links.close()


async def test_short_shards_and_clients_without_bulk_never_ask(links: SeatLinks, fakes: Any) -> None:
    seat = fakes.make_committee(1).seats[0]
    with mock.patch.object(node_calls, "fetch_bulk_port", side_effect=AssertionError):
        assert await links._connect(seat, BULK_MIN_BYTES - 1) is None
        assert await SeatLinks(Traffic(), has_bulk=False)._connect(seat, BULK_MIN_BYTES) is None
    await links.close()


def test_a_pool_gives_back_what_it_keeps_and_keeps_little() -> None:
    pool = BufferPool(max_bytes=100)
    first = pool.take(60)
    pool.give_back(first)
    again = pool.take(60)
    assert again is first
    assert pool.take(60) is not first
    pool.give_back(pool.take(60), pool.take(60))
    assert pool._num_bytes <= 100
