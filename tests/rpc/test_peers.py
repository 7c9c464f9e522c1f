"""One stranger who takes all it can: whatever it takes, another peer still gets some."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import pytest
from aiohttp import web

from chain.rpc import connections as connections_module
from chain.rpc import dispatch
from chain.rpc import filters as filters_module
from chain.rpc import subscriptions as module
from chain.rpc.connections import Connections
from chain.rpc.dispatch import Dispatcher
from chain.rpc.faults import FilterNotFound
from chain.rpc.filters import FilterRegistry
from chain.rpc.logs import parse_query
from chain.rpc.metrics import Metrics
from chain.rpc.peers import UNKNOWN_PEER, Peer, Room, get_peer, parse_peer
from chain.rpc.subscriptions import Subscriptions
from chain.system import CONTRACTS

DEADLINE_SECONDS = 20.0
STRANGER, OTHER = "127.0.0.3", "127.0.0.2"
SUBSCRIBE = {"jsonrpc": "2.0", "id": 1, "method": "eth_subscribe", "params": ["newHeads"]}


@pytest.mark.parametrize(
    ("host", "peer"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:0:1:2:3:4:5", "2001:db8:0:1::/64"),
        ("2001:db8:0:1::", "2001:db8:0:1::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("a path", UNKNOWN_PEER),
    ],
)
def test_a_peer_is_what_one_customer_has(host: str, peer: str) -> None:
    assert parse_peer(host) == peer


def test_who_is_gone_is_nobody() -> None:
    assert get_peer(None) == UNKNOWN_PEER


def test_one_peer_leaves_room_for_another() -> None:
    room = Room(1_000)
    one, other = Peer(STRANGER), Peer(OTHER)
    room.add(one, 700)
    assert not room.has_room(one, 51)
    assert room.has_room(one, 50)
    assert room.has_room(other, 300)
    room.add(other, 300)
    assert not room.has_room(Peer("third"), 1), "the whole is bounded as well"
    room.remove(one, 700)
    room.remove(other, 300)
    assert room.has_room(one, 5_000), "a single one always fits"
    assert not room._by_peer, "nobody is remembered who holds nothing"


def test_a_new_filter_takes_the_place_of_one_of_the_greediest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filters_module, "MAX_FILTERS", 10)
    monkeypatch.setattr(filters_module, "MAX_ITEMS", 100)
    snapshot: Any = SimpleNamespace(height=0, first_height=0)
    registry = FilterRegistry(lambda: 0.0)
    kept = registry.add(None, 0, Peer(OTHER))
    query = parse_query({"address": [f"0x{number:040x}" for number in range(30)]}, 0)
    for wanted in (*[None] * 30, *[query] * 30):
        newest = registry.add(wanted, 0, Peer(STRANGER))
    assert registry.changes(snapshot, kept) == [], "the stranger has taken its own places only"
    assert registry.changes(snapshot, newest) == []
    more = [registry.add(None, 0, Peer(OTHER)) for _ in range(6)]
    assert [registry.changes(snapshot, each) for each in (kept, *more)] == [[]] * 7
    registry.add(query, 0, Peer(STRANGER))
    with pytest.raises(FilterNotFound):
        registry.changes(snapshot, kept)  # the other has most now, and polled this one longest ago


class _Database:
    """The solo chain's own store: this process may not open the file twice."""

    def __init__(self, store: Any) -> None:
        self.store = store

    def reader(self) -> Any:
        return self.store

    def close(self) -> None:
        pass


def make_dispatcher(solo: Any) -> Dispatcher:
    database: Any = _Database(solo.chain.store)
    upstream: Any = None
    return Dispatcher(database=database, contracts=CONTRACTS, upstream=upstream, metrics=Metrics())


async def test_a_stranger_leaves_a_thread_for_reads(solo: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many slow reads as there are threads, and many more, of one peer: another's read is answered meanwhile."""
    is_over = threading.Event()

    def read_slowly(session: Any, params: Any) -> Any:
        assert is_over.wait(DEADLINE_SECONDS)
        return None

    monkeypatch.setitem(cast(dict[str, Any], dispatch.READ_METHODS), "eth_getBlockReceipts", read_slowly)
    monkeypatch.setitem(cast(dict[str, Any], dispatch.READ_METHODS), "eth_estimateGas", read_slowly)
    dispatcher = make_dispatcher(solo)
    slow = [b'{"jsonrpc":"2.0","id":1,"method":"%s","params":["latest"]}' % name for name in (b"eth_getBlockReceipts",)]
    slow.append(b'{"jsonrpc":"2.0","id":1,"method":"eth_estimateGas","params":[{}]}')
    call = b'{"jsonrpc":"2.0","id":1,"method":"eth_call","params":[{"data":"0x60016000f3","gas":"0xfffff"}]}'
    with solo.chain.lock:
        tasks = [asyncio.create_task(dispatcher.answer(body, Peer(STRANGER))) for body in slow for _ in range(12)]
        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                for body in (b'{"jsonrpc":"2.0","id":1,"method":"eth_blockNumber"}', call):
                    assert "result" in json.loads(await dispatcher.answer(body, Peer(OTHER)))
            assert not any(task.done() for task in tasks)
        finally:
            is_over.set()
        assert all("result" in json.loads(answer) for answer in await asyncio.gather(*tasks))
    dispatcher.close()


@asynccontextmanager
async def serving(solo: Any, room: Room) -> AsyncIterator[tuple[Subscriptions, str]]:
    """Serve WebSockets of the solo chain in this process."""
    dispatcher = make_dispatcher(solo)
    subscriptions = Subscriptions(dispatcher, room)
    server = web.Server(subscriptions.serve)  # type: ignore[arg-type]
    factory = Connections().make_factory(server)
    listener = await asyncio.get_running_loop().create_server(factory, "127.0.0.1", 0)
    app: Any = None
    await subscriptions.start(app)
    try:
        yield subscriptions, f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/"
    finally:
        listener.close()
        await subscriptions.stop(app)
        await server.shutdown(1.0)
        dispatcher.close()


class Client:
    """Opens WebSockets from an address of its own."""

    def __init__(self, stack: AsyncExitStack, url: str, host: str) -> None:
        self.stack, self.url, self.host = stack, url, host

    async def open(self, *, subscribes: bool = True) -> aiohttp.ClientWebSocketResponse:
        connector = aiohttp.TCPConnector(local_addr=(self.host, 0))
        session = await self.stack.enter_async_context(aiohttp.ClientSession(connector=connector))
        socket = await self.stack.enter_async_context(session.ws_connect(self.url))
        await socket.send_json(SUBSCRIBE if subscribes else {**SUBSCRIBE, "method": "eth_chainId", "params": []})
        assert "result" in await socket.receive_json()
        return socket

    async def is_refused(self) -> str:
        connector = aiohttp.TCPConnector(local_addr=(self.host, 0))
        headers = {"Upgrade": "websocket", "Connection": "Upgrade"}
        async with aiohttp.ClientSession(connector=connector) as session, session.get(self.url, headers=headers) as got:
            return f"{got.status}: {await got.text()}"


async def test_subscribed_sockets_of_a_stranger_keep_nobody_out(solo: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_CONNECTIONS", 6)
    solo.chain.lock.acquire()
    try:
        async with (
            asyncio.timeout(60),
            serving(solo, Room(1 << 20)) as (subscriptions, url),
            AsyncExitStack() as stack,
        ):
            stranger, other = Client(stack, url, STRANGER), Client(stack, url, OTHER)
            taken = [await stranger.open() for _ in range(6)]
            text = "503: 6 WebSockets are open already, 6 of them from your address: close one"
            assert await stranger.is_refused() == text
            kept = [await other.open() for _ in range(3)]
            for socket in taken[:3]:
                message = await socket.receive()
                assert (message.type, message.data) == (aiohttp.WSMsgType.CLOSE, aiohttp.WSCloseCode.TRY_AGAIN_LATER)
                assert "your address has most of them" in str(message.extra)
            assert len(subscriptions._connections) == 6
            assert "503: " in await other.is_refused(), "both have three now"
            assert "503: " in await stranger.is_refused()
            for socket in kept:
                await socket.send_json({"jsonrpc": "2.0", "id": 2, "method": "eth_chainId"})
                assert (await socket.receive_json())["id"] == 2
    finally:
        solo.chain.lock.release()


async def test_who_is_silent_gives_its_place_to_its_own_neighbours(solo: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """All behind one proxy: a socket that listens to nothing and says nothing goes for one that wants something."""
    monkeypatch.setattr(module, "MAX_CONNECTIONS", 3)
    solo.chain.lock.acquire()
    try:
        async with (
            asyncio.timeout(60),
            serving(solo, Room(1 << 20)) as (subscriptions, url),
            AsyncExitStack() as stack,
        ):
            proxy = Client(stack, url, OTHER)
            listening, silent, talking = [await proxy.open(subscribes=wants) for wants in (True, False, False)]
            assert "503: 3 WebSockets are open already" in await proxy.is_refused()
            now = max(each.spoke_at for each in subscriptions._connections)
            for each in subscriptions._connections:
                each.spoke_at = now - 2 * module.IDLE_SECONDS
            await talking.send_json({**SUBSCRIBE, "method": "eth_chainId", "params": []})
            await talking.receive_json()
            newcomer = await proxy.open()
            assert (await silent.receive()).data == aiohttp.WSCloseCode.TRY_AGAIN_LATER
            for socket in (listening, talking, newcomer):
                await socket.send_json({**SUBSCRIBE, "method": "eth_chainId", "params": []})
                assert "result" in await socket.receive_json()
    finally:
        solo.chain.lock.release()


async def test_a_newcomer_takes_the_place_of_one_of_the_greediest() -> None:
    """Of idle connections, too: one that has waited for a little goes before another peer's that has waited long."""
    connections = Connections(limit=4)

    async def handler(request: web.BaseRequest) -> web.Response:
        return web.Response(text="yes")

    server = web.Server(handler)
    listener = await asyncio.get_running_loop().create_server(connections.make_factory(server), "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            opened = []
            for host in (OTHER, STRANGER, STRANGER, STRANGER, STRANGER):
                reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(host, 0))
                while len(server.connections) < min(len(opened) + 1, 4):  # noqa: ASYNC110 -- aiohttp tells nobody
                    await asyncio.sleep(0.01)
                opened.append((reader, writer))
            with suppress(ConnectionError):
                assert await opened[1][0].read(1) == b""
            reader, writer = opened[0]
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await reader.readline()).startswith(b"HTTP/1.1 200"), "it has waited longest, and is not of them"
            for _, each in opened:
                each.close()
                with suppress(ConnectionError):
                    await each.wait_closed()
    finally:
        listener.close()
        await server.shutdown(1.0)
    assert connections_module.MAX_CONNECTIONS > module.MAX_CONNECTIONS
