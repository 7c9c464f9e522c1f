"""What a client may take: connections, answers that it doesn't read, answers of one batch."""

from __future__ import annotations

import asyncio
import io
import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from chain.rpc import connections as module
from chain.rpc import dispatch
from chain.rpc import filters as filters_module
from chain.rpc.chain_methods import compute_tips
from chain.rpc.connections import Connections, read_body, send_answer
from chain.rpc.dispatch import Dispatcher
from chain.rpc.filters import FilterRegistry
from chain.rpc.logs import parse_query
from chain.rpc.metrics import Metrics
from chain.rpc.peers import Peer, Room
from chain.rpc.subscriptions import Subscriptions, _Connection, _Subscription
from chain.system import CONTRACTS

DEADLINE_SECONDS = 20.0
ONE, OTHER = Peer("192.0.2.1"), Peer("192.0.2.2")


async def wait_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not condition():  # noqa: ASYNC110 -- state of another library, which tells nobody
            await asyncio.sleep(0.01)


async def serve(handler: Any, connections: Connections) -> tuple[asyncio.Server, web.Server, int]:
    server = web.Server(handler)
    listener = await asyncio.get_running_loop().create_server(connections.make_factory(server), "127.0.0.1", 0)
    return listener, server, listener.sockets[0].getsockname()[1]


async def test_who_says_nothing_gives_its_place_to_a_newcomer() -> None:
    connections = Connections(limit=2)

    async def handler(request: web.BaseRequest) -> web.Response:
        with connections.answering(request):
            return web.Response(text="ok")

    listener, server, port = await serve(handler, connections)
    try:
        idle = []
        for _ in range(2):
            idle.append(await asyncio.open_connection("127.0.0.1", port))
            await wait_until(lambda: len(server.connections) == len(idle))
        idle[1][1].write(b"POST / HTTP/1.1\r\nHost: x\r\n")  # and never the rest
        async with asyncio.timeout(DEADLINE_SECONDS), aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{port}/") as response:
                assert await response.text() == "ok"
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await idle[0][0].readexactly(1)
            await wait_until(lambda: len(server.connections) == 2)
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert (await reader.read()).startswith(b"HTTP/1.1 200")
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await idle[1][0].readexactly(1)
        for _, each in (*idle, (reader, writer)):
            each.close()
    finally:
        listener.close()
        await server.shutdown(1.0)


async def test_who_is_being_answered_stays_and_a_newcomer_is_told_so() -> None:
    connections, is_over = Connections(limit=2), asyncio.Event()

    async def handler(request: web.BaseRequest) -> web.Response:
        with connections.answering(request):
            await is_over.wait()
            return web.Response(text="ok")

    listener, server, port = await serve(handler, connections)
    try:
        async with asyncio.timeout(DEADLINE_SECONDS), aiohttp.ClientSession() as session:
            asked = [asyncio.create_task(_get(session, port)) for _ in range(2)]
            await wait_until(lambda: len(connections._waiting_since) == 0 and len(server.connections) == 2)
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            assert (await reader.read()).startswith(b"HTTP/1.1 503")
            writer.close()
            is_over.set()
            assert await asyncio.gather(*asked) == ["ok", "ok"]
    finally:
        listener.close()
        await server.shutdown(1.0)


async def _get(session: aiohttp.ClientSession, port: int) -> str:
    async with session.get(f"http://127.0.0.1:{port}/") as response:
        return await response.text()


async def test_bodies_on_their_way_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "READ_SECONDS", 2.0)
    unread = Room(400_000)

    async def handler(request: web.BaseRequest) -> web.Response:
        try:
            body = await read_body(request, unread)  # type: ignore[arg-type]
        except (web.HTTPServiceUnavailable, web.HTTPRequestTimeout, web.HTTPRequestEntityTooLarge) as refused:
            return web.Response(status=refused.status)
        return web.Response(text=str(len(body)))

    listener, server, port = await serve(handler, Connections())
    url = f"http://127.0.0.1:{port}/"
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 400000\r\n\r\n" + bytes(300_000))
        await wait_until(lambda: unread.count == 300_000)
        async with asyncio.timeout(DEADLINE_SECONDS), aiohttp.ClientSession() as session:
            for size, status in ((200_000, 503), (60_000, 200)):
                async with session.post(url, data=io.BytesIO(bytes(size))) as response:
                    assert response.status == status, "a small body always has room"
            assert (await reader.readline()).startswith(b"HTTP/1.1 408"), "it did not come in time"
            assert unread.count == 0
            async with session.post(url, data=io.BytesIO(bytes(200_000))) as response:
                assert await response.text() == "200000"
            async with session.post(url, data=io.BytesIO(bytes(module.MAX_BODY_BYTES + 1))) as response:
                assert response.status == 413
        writer.close()
    finally:
        listener.close()
        await server.shutdown(1.0)


async def test_who_takes_no_answer_is_cut_off_and_frees_its_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SEND_SECONDS", 0.5)
    size = 16 << 20
    unsent = Room(size + 1_000)
    sizes = iter((size, 2_000, 2_000))

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        try:
            return await send_answer(request, bytes(next(sizes)), {}, unsent)  # type: ignore[arg-type]
        except web.HTTPServiceUnavailable as full:
            return web.Response(status=full.status, text=full.text)

    listener, server, port = await serve(handler, Connections(limit=10))
    url = f"http://127.0.0.1:{port}/"
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1_024)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await wait_until(lambda: unsent.count == size)
        async with aiohttp.ClientSession() as session:
            async with session.get(url) as response:
                assert response.status == 503, "the room is full"
            await wait_until(lambda: unsent.count == 0)
            async with session.get(url) as response:
                assert len(await response.read()) == 2_000
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(size)
        writer.close()
    finally:
        listener.close()
        await server.shutdown(1.0)


class _Database:
    """The solo chain's own store: this process may not open the file twice."""

    def __init__(self, store: Any) -> None:
        self.store = store

    def reader(self) -> Any:
        return self.store

    def close(self) -> None:
        pass


async def test_answers_of_a_batch_have_a_bound(solo: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "MAX_ANSWER_BYTES", 3_000)
    database: Any = _Database(solo.chain.store)
    upstream: Any = None
    dispatcher = Dispatcher(database=database, contracts=CONTRACTS, upstream=upstream, metrics=Metrics())
    calls = [{"jsonrpc": "2.0", "id": i, "method": "eth_getBlockByNumber", "params": ["0x0", False]} for i in range(9)]
    with solo.chain.lock:
        answers = json.loads(await dispatcher.answer(json.dumps(calls).encode(), ONE))
        alone = json.loads(await dispatcher.answer(json.dumps(calls[0]).encode(), ONE))
    assert [answer["id"] for answer in answers] == list(range(9))
    refused = [answer["error"]["code"] for answer in answers if "error" in answer]
    assert 0 < len(refused) < 9
    assert set(refused) == {-32003}
    assert alone["result"]["number"] == "0x0"
    dispatcher.close()


async def test_bodies_being_answered_have_a_bound(solo: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten thousand empty lists are 30 kB on the wire and a megabyte in memory."""
    database: Any = _Database(solo.chain.store)
    upstream: Any = None
    monkeypatch.setattr(dispatch, "MAX_HELD_BYTES", 2_000_000)
    dispatcher = Dispatcher(database=database, contracts=CONTRACTS, upstream=upstream, metrics=Metrics())
    many = b'{"jsonrpc":"2.0","id":1,"method":"eth_blockNumber","params":[%s]}'
    long = many % b",".join([b"[]"] * 5_000)
    with solo.chain.lock:
        answers = await asyncio.gather(*(dispatcher.answer(long, ONE) for _ in range(3)))
        after = json.loads(await dispatcher.answer(long, ONE))
    codes = [json.loads(answer)["error"]["code"] for answer in answers]
    assert codes == [-32602, -32010, -32010], "the first is read: too many arguments; no room for the others"
    assert after["error"]["code"] == -32602
    refused = json.loads(await dispatcher.answer(many % b",".join([b"[]"] * 60_000), ONE))
    assert refused["error"]["code"] == -32600
    assert "values, at most 100000" in refused["error"]["message"]
    dispatcher.close()


async def test_searches_keep_no_read_waiting(solo: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    database: Any = _Database(solo.chain.store)
    upstream: Any = None
    is_over = threading.Event()

    def search(session: Any, params: Any) -> list[Any]:
        assert is_over.wait(DEADLINE_SECONDS)
        return []

    monkeypatch.setitem(cast(dict[str, Any], dispatch.READ_METHODS), "eth_getLogs", search)
    dispatcher = Dispatcher(database=database, contracts=CONTRACTS, upstream=upstream, metrics=Metrics())
    wanted = b'{"jsonrpc":"2.0","id":1,"method":"eth_getLogs","params":[{}]}'
    number = b'{"jsonrpc":"2.0","id":1,"method":"eth_blockNumber"}'
    with solo.chain.lock:
        peers = [ONE] * (dispatch.MAX_WAITING + 5) + [OTHER] * 3
        searches = [asyncio.create_task(dispatcher.answer(wanted, peer)) for peer in peers]
        async with asyncio.timeout(DEADLINE_SECONDS):
            for _ in range(20):
                answer = json.loads(await dispatcher.answer(number, ONE))
                assert int(answer["result"], 16) == solo.chain.height
            assert not all(each.done() for each in searches)
            is_over.set()
            answers = [json.loads(each) for each in await asyncio.gather(*searches)]
    assert [answer.get("result") for answer in answers[-3:]] == [[]] * 3, "places are left to another peer"
    share = dispatch.MAX_WAITING * 3 // 4
    assert sum(answer.get("result") == [] for answer in answers[:-3]) == share
    refused = [answer["error"] for answer in answers if "error" in answer]
    assert {error["code"] for error in refused} == {-32010}
    assert {error["message"] for error in refused} == {
        f"{share} requests from your address are being answered already; next: send again in a moment"
    }
    dispatcher.close()


async def test_who_left_holds_no_room() -> None:
    """A block's messages may be made while their reader closes its connection."""
    room = Room(1_000)
    subscription = _Subscription(subscription_id="0x1", query=None, next_height=1)
    dispatcher: Any = _Collected((1, [[b"x" * 100]]))
    socket: Any = None
    connection = _Connection(socket, asyncio.Queue(), room, None, ONE, 0.0, subscriptions={"0x1": subscription})
    subscriptions = Subscriptions(dispatcher, room)
    await subscriptions._tell([(connection, subscription)])
    assert (room.count, connection.queue.qsize()) == (0, 0)
    subscriptions._connections.add(connection)
    await subscriptions._tell([(connection, subscription)])
    assert (room.count, connection.queue.qsize()) == (100, 1)


class _Collected:
    """A dispatcher whose reads are known."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    async def read(self, reading: Any) -> Any:
        return self.answer


def test_a_slow_poll_of_one_filter_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    is_asked, is_over = threading.Event(), threading.Event()
    filters = FilterRegistry(lambda: 0.0)
    slow, quick = filters.add(parse_query({}, 0), 0, ONE), filters.add(None, 0, ONE)

    def search(*arguments: Any) -> list[Any]:
        is_asked.set()
        assert is_over.wait(DEADLINE_SECONDS)
        return []

    monkeypatch.setattr(filters_module, "find_logs_between", search)
    snapshot: Any = SimpleNamespace(height=3, block=lambda height: SimpleNamespace(hash=bytes([height])))
    with ThreadPoolExecutor(1) as threads:
        polled = threads.submit(filters.changes, snapshot, slow)
        assert is_asked.wait(DEADLINE_SECONDS)
        assert filters.changes(snapshot, quick) == ["0x01", "0x02", "0x03"]
        is_over.set()
        assert polled.result(DEADLINE_SECONDS) == []


@given(
    paid=st.lists(st.tuples(st.integers(0, 50), st.integers(21_000, 60_000)), max_size=30),
    percentiles=st.lists(st.floats(0, 100), max_size=12),
)
def test_tips_are_those_of_the_gas_passed(paid: list[tuple[int, int]], percentiles: list[float]) -> None:
    receipts: Any = [SimpleNamespace(effective_gas_price=7 + tip, gas_used=gas) for tip, gas in paid]
    by_tip = sorted(paid)
    total = sum(gas for _, gas in by_tip)

    def find(percentile: float) -> int:
        """Word for word as EIP-1559's fee history has it."""
        passed = 0
        for tip, gas in by_tip:
            passed += gas
            if passed * 100 >= total * percentile:
                return tip
        return by_tip[-1][0] if by_tip else 0

    percentiles.sort()
    assert compute_tips(receipts, 7, percentiles) == [find(each) for each in percentiles]
