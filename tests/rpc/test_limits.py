"""What a client may take: connections, answers that it doesn't read, answers of one batch."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from chain.rpc import connections, dispatch
from chain.rpc.connections import UnsentBytes, make_factory, send_answer
from chain.rpc.dispatch import Dispatcher
from chain.rpc.metrics import Metrics
from chain.system import CONTRACTS

DEADLINE_SECONDS = 20.0


async def wait_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not condition():  # noqa: ASYNC110 -- state of another library, which tells nobody
            await asyncio.sleep(0.01)


async def serve(handler: Any, limit: int) -> tuple[asyncio.Server, web.Server, int]:
    server = web.Server(handler)
    listener = await asyncio.get_running_loop().create_server(make_factory(server, limit), "127.0.0.1", 0)
    return listener, server, listener.sockets[0].getsockname()[1]


async def test_connections_above_the_limit_are_told_so() -> None:
    async def handler(request: web.BaseRequest) -> web.Response:
        return web.Response(text="ok")

    listener, server, port = await serve(handler, limit=2)
    try:
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        await wait_until(lambda: len(server.connections) == 2)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        async with asyncio.timeout(DEADLINE_SECONDS):
            assert (await reader.read()).startswith(b"HTTP/1.1 503")
        writer.close()
        idle[0][1].close()
        await wait_until(lambda: len(server.connections) == 1)
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/") as response:
            assert await response.text() == "ok"
        idle[1][1].close()
    finally:
        listener.close()
        await server.shutdown(1.0)


async def test_who_takes_no_answer_is_cut_off_and_frees_its_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "SEND_SECONDS", 0.5)
    size = 16 << 20
    unsent = UnsentBytes(size + 1_000)
    sizes = iter((size, 2_000, 2_000))

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        try:
            return await send_answer(request, bytes(next(sizes)), {}, unsent)  # type: ignore[arg-type]
        except web.HTTPServiceUnavailable as full:
            return web.Response(status=full.status, text=full.text)

    listener, server, port = await serve(handler, limit=10)
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
        answers = json.loads(await dispatcher.answer(json.dumps(calls).encode()))
        alone = json.loads(await dispatcher.answer(json.dumps(calls[0]).encode()))
    assert [answer["id"] for answer in answers] == list(range(9))
    refused = [answer["error"]["code"] for answer in answers if "error" in answer]
    assert 0 < len(refused) < 9
    assert set(refused) == {-32003}
    assert alone["result"]["number"] == "0x0"
    dispatcher.close()
