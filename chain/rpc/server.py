"""The JSON-RPC process: HTTP around the dispatcher, the page (`chain.rpc.explorer`), ``/metrics`` and ``/health``.

It reads the LMDB that ``chain-node abci`` writes and never writes it, so consensus does not wait for it, and it
may be stopped and started at any time.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp
from aiohttp import web

from chain.abci.metrics import read_metrics
from chain.recursion import allow_evm_depth
from chain.rpc.connections import (
    MAX_BODY_BYTES,
    MAX_UNREAD_BYTES,
    MAX_UNSENT_BYTES,
    Connections,
    open_listener,
    read_body,
    send_answer,
)
from chain.rpc.dispatch import ChainDatabase, Dispatcher
from chain.rpc.explorer import CORS, Explorer, to_json
from chain.rpc.faults import RpcFault
from chain.rpc.metrics import Metrics
from chain.rpc.peers import Room, get_peer
from chain.rpc.session import Session
from chain.rpc.subscriptions import Subscriptions
from chain.rpc.upstream import Upstream, open_session
from chain.system import CONTRACTS

log = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

SHUTDOWN_SECONDS = 5.0
"""How long open requests may take to end after SIGTERM."""


def run(home: Path, cometbft_url: str, host: str, port: int) -> None:
    """Serve until SIGTERM or SIGINT."""
    allow_evm_depth()
    asyncio.run(_serve(home, cometbft_url, host, port))


def build_app(
    home: Path, cometbft_url: str, client: aiohttp.ClientSession, connections: Connections
) -> web.Application:
    """Wire the application; it owns the dispatcher and closes it."""
    node = _Node(home, cometbft_url, client, connections)
    app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[node.mark_answering])
    app.add_routes(
        [
            web.post("/", node.answer),
            web.options("/", node.answer_preflight),
            web.get("/", node.show_page_or_socket),
            *node.explorer.routes(),
            web.get("/metrics", node.show_metrics),
            web.get("/health", node.show_health),
        ]
    )
    app.on_startup.append(node.subscriptions.start)
    app.on_shutdown.append(node.subscriptions.stop)
    app.on_cleanup.append(node.close)
    return app


class _Node:
    """The handlers and what they share."""

    def __init__(self, home: Path, cometbft_url: str, client: aiohttp.ClientSession, connections: Connections) -> None:
        self._connections = connections
        self._upstream = Upstream(cometbft_url, client)
        self._home = home
        self._metrics = Metrics()
        self._dispatcher = Dispatcher(
            database=ChainDatabase(home / "app"),
            contracts=CONTRACTS,
            upstream=self._upstream,
            metrics=self._metrics,
        )
        self.explorer = Explorer(self._dispatcher)
        self._unread = Room(MAX_UNREAD_BYTES)
        self._unsent = Room(MAX_UNSENT_BYTES)
        self.subscriptions = Subscriptions(self._dispatcher, self._unsent)

    async def answer(self, request: web.Request) -> web.Response:
        """JSON-RPC."""
        with self._connections.waiting(request):
            body = await read_body(request, self._unread)
        answer = await self._dispatcher.answer(body, get_peer(request.transport))
        with self._connections.waiting(request):
            return await send_answer(request, answer, CORS, self._unsent)

    @web.middleware
    async def mark_answering(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Keep a connection while it is being answered, however many others want its place."""
        with self._connections.answering(request):
            try:
                return await handler(request)
            except ConnectionError:
                return web.Response()  # the client has left, which is no error of ours to be logged

    async def answer_preflight(self, request: web.Request) -> web.Response:
        """CORS preflight."""
        return web.Response(status=204, headers=CORS)

    async def show_page_or_socket(self, request: web.Request) -> web.StreamResponse:
        """The page; or, where the client asks for it, a WebSocket."""
        if request.headers.get("Upgrade", "").lower() == "websocket":
            return await self.subscriptions.serve(request)
        return self.explorer.show_page()

    async def show_metrics(self, request: web.Request) -> web.Response:
        """Prometheus text, the application's too."""
        try:
            await self._dispatcher.read(self._measure)
        except RpcFault as e:
            log.warning("metrics without the chain's head: %s", e.message)
        body = self._metrics.render() + read_metrics(self._home)
        return web.Response(body=body, headers={"Content-Type": "text/plain; version=0.0.4"})

    async def show_health(self, request: web.Request) -> web.Response:
        """200 when the chain is readable and CometBFT answers and has caught up, else 503 with the reason."""
        try:
            height = await self._dispatcher.read(lambda session: session.snapshot.height)
            state = await self._upstream.get_sync_state()
        except RpcFault as e:
            return to_json({"healthy": False, "reason": e.message}, status=503)
        body = {
            "healthy": not state.is_catching_up,
            "height": height,
            "coreHeight": state.height,
            "catchingUp": state.is_catching_up,
            "peers": state.num_peers,
        }
        return to_json(body, status=503 if state.is_catching_up else 200)

    async def close(self, app: web.Application) -> None:
        """Let running calls end and close the database."""
        await asyncio.get_running_loop().run_in_executor(None, self._dispatcher.close)

    def _measure(self, session: Session) -> None:
        block = session.snapshot.block(session.snapshot.height)
        if block is not None:
            self._metrics.set_head(height=block.height, time_seconds=block.time_seconds, gas_used=block.gas_used)


async def _serve(home: Path, cometbft_url: str, host: str, port: int) -> None:
    stop = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stop.set)
    connections = Connections()
    async with open_session() as client:
        runner = web.AppRunner(
            build_app(home, cometbft_url, client, connections), access_log=None, shutdown_timeout=SHUTDOWN_SECONDS
        )
        await runner.setup()
        try:
            async with open_listener(runner, connections, host, port) as bound:
                log.info("JSON-RPC and page on http://%s:%d", *bound)
                await stop.wait()
        finally:
            await runner.cleanup()
