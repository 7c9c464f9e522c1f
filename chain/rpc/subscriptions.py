"""WebSocket: every method, and ``eth_subscribe`` to newHeads and logs.

One task looks for new blocks while anybody is subscribed and hands each connection what it asked for.  A client
that does not read is cut off when its queue is full, so it costs a bounded amount of memory and no snapshot.
Where all places are taken, a newcomer gets one of the peer that has most: nobody keeps others out by taking many.
A subscription tells of each block after it was made exactly once, in order.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from aiohttp import WSCloseCode, WSMsgType, web

from chain.rpc.connections import SEND_SECONDS
from chain.rpc.dispatch import Dispatcher
from chain.rpc.faults import InvalidParams, RangeTooWide, RpcFault
from chain.rpc.logs import LogQuery, find_logs_between, parse_query
from chain.rpc.peers import Peer, Room, get_peer
from chain.rpc.session import Session
from chain.rpc.views import view_block, view_log
from da.foreign_json import parse_json

log = logging.getLogger(__name__)

POLL_SECONDS = 0.1
"""Between two looks for a new block: a third of a devnet's block."""
MAX_CONNECTIONS = 256
"""WebSockets of all peers; each may have all of them while nobody else wants one."""
IDLE_SECONDS = 60.0
"""A WebSocket without subscriptions that has said nothing for so long gives its place to its own peer's newcomer."""
CLOSE_SECONDS = 5.0
"""In which a client whose place is needed must agree to close."""
MAX_SUBSCRIPTIONS = 64
"""Of one connection."""
MAX_ITEMS = 2_000
"""Addresses and topics that the subscriptions of one connection name together: asked of each block."""
MAX_QUEUED = 1_000
"""Messages that wait for a slow reader."""
MAX_MESSAGE_BYTES = 1 << 20
"""Holds the longest transaction four times; two of them may lie here for each connection."""
_HEARTBEAT_SECONDS = 30.0
"""A peer that does not answer a ping within half of it is gone."""


@dataclass(slots=True, eq=False)
class _Subscription:
    """What one eth_subscribe asked for."""

    subscription_id: str
    query: LogQuery | None
    """The logs that are wanted; None: newHeads."""
    next_height: int
    """First block it has not been told of."""

    @property
    def num_items(self) -> int:
        """Return how many addresses and topics it names."""
        return 0 if self.query is None else self.query.num_items


@dataclass(slots=True, eq=False)
class _Connection:
    """One WebSocket and what it has subscribed to; touched by the event loop only."""

    socket: web.WebSocketResponse
    queue: asyncio.Queue[bytes]
    unsent: Room
    """Of all connections."""
    transport: asyncio.Transport | None
    """Under the socket, to cut it off."""
    peer: Peer
    spoke_at: float
    """When its client sent something last, seconds of the monotonic clock."""
    num_waiting_bytes: int = 0
    """In the queue, or being sent."""
    subscriptions: dict[str, _Subscription] = field(default_factory=dict)
    """By id."""
    is_overflown: bool = False


class Subscriptions:
    """All WebSocket connections of a server."""

    def __init__(self, dispatcher: Dispatcher, unsent: Room) -> None:
        """Answer through ``dispatcher``, within the room of ``unsent``; ``start`` begins to look for blocks."""
        self._dispatcher = dispatcher
        self._unsent = unsent
        self._connections: set[_Connection] = set()
        self._closing: set[asyncio.Task[None]] = set()
        """Of those whose place somebody else has got."""
        self._task: asyncio.Task[None] | None = None

    async def start(self, app: web.Application) -> None:
        """Begin to look for blocks."""
        self._task = asyncio.create_task(self._watch(), name="subscriptions")

    async def stop(self, app: web.Application) -> None:
        """Close every connection."""
        for connection in list(self._connections):
            await connection.socket.close(code=WSCloseCode.GOING_AWAY, message=b"the node stops")
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await asyncio.gather(*self._closing, return_exceptions=True)

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Serve one connection until it ends."""
        peer = get_peer(request.transport)
        if len(self._connections) >= MAX_CONNECTIONS and not self._make_place(peer):
            num_theirs = sum(each.peer == peer for each in self._connections)
            text = f"{MAX_CONNECTIONS} WebSockets are open already, {num_theirs} of them from your address: close one"
            return web.Response(status=503, text=text)
        socket = web.WebSocketResponse(heartbeat=_HEARTBEAT_SECONDS, max_msg_size=MAX_MESSAGE_BYTES)
        await socket.prepare(request)
        connection = _Connection(
            socket, asyncio.Queue(MAX_QUEUED), self._unsent, request.transport, peer, time.monotonic()
        )
        self._connections.add(connection)
        sender = asyncio.create_task(_send_queued(connection))
        try:
            async for message in socket:
                if message.type not in (WSMsgType.TEXT, WSMsgType.BINARY):
                    break
                connection.spoke_at = time.monotonic()
                _enqueue(connection, await self._answer(connection, message.data))
        finally:
            self._connections.discard(connection)
            sender.cancel()
            await asyncio.gather(sender, return_exceptions=True)
            self._unsent.remove(peer, connection.num_waiting_bytes)
        return socket

    def _make_place(self, peer: Peer) -> bool:
        """Close a WebSocket for a newcomer: of the peer with most, where that has more than this one would have."""
        num_open = Counter(each.peer for each in self._connections)
        ((greediest, most),) = num_open.most_common(1)
        if most > num_open[peer] + 1:
            candidates = [each for each in self._connections if each.peer == greediest]
        else:
            idle_since = time.monotonic() - IDLE_SECONDS
            candidates = [
                each
                for each in self._connections
                if each.peer == peer and not each.subscriptions and each.spoke_at < idle_since
            ]
        if not candidates:
            return False
        chosen = min(candidates, key=lambda each: (bool(each.subscriptions), each.spoke_at))
        self._connections.discard(chosen)
        task = asyncio.create_task(_close_for_another(chosen))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
        return True

    async def _answer(self, connection: _Connection, message: str | bytes) -> bytes:
        body = message.encode() if isinstance(message, str) else message
        call = _parse_subscription_call(body)
        if call is None:
            return await self._dispatcher.answer(body, connection.peer)
        answer: dict[str, Any] = {"jsonrpc": "2.0", "id": call.get("id")}
        try:
            params = call.get("params")
            if not isinstance(params, list) or not params:
                raise InvalidParams(f"{call['method']} takes a list: a name or an id first")
            if call["method"] == "eth_subscribe":
                if len(connection.subscriptions) >= MAX_SUBSCRIPTIONS:
                    raise InvalidParams(f"this connection has {MAX_SUBSCRIPTIONS} subscriptions already: end one")
                made = await self._dispatcher.read_for(
                    connection.peer, lambda session: _make_subscription(session, params)
                )
                num_items = sum(each.num_items for each in (made, *connection.subscriptions.values()))
                if num_items > MAX_ITEMS:
                    raise InvalidParams(
                        f"this connection's subscriptions name {num_items} addresses and topics, at most {MAX_ITEMS}:"
                        " end one"
                    )
                connection.subscriptions[made.subscription_id] = made
                answer["result"] = made.subscription_id
            else:
                answer["result"] = connection.subscriptions.pop(str(params[0]), None) is not None
        except RpcFault as e:
            answer["error"] = {"code": e.code, "message": e.message}
        return _encode(answer)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(POLL_SECONDS)
            live = [
                (connection, subscription)
                for connection in self._connections
                for subscription in connection.subscriptions.values()
            ]
            if live:
                await self._tell(live)

    async def _tell(self, live: list[tuple[_Connection, _Subscription]]) -> None:
        subscriptions = [subscription for _, subscription in live]
        try:
            stop, messages = await self._dispatcher.read(partial(_collect, subscriptions))
        except RpcFault as e:
            log.warning("subscriptions wait: %s", e.message)
            return
        for (connection, subscription), found in zip(live, messages, strict=True):
            if found is None:
                connection.subscriptions.pop(subscription.subscription_id, None)
                continue
            subscription.next_height = max(subscription.next_height, stop + 1)
            if connection in self._connections and subscription.subscription_id in connection.subscriptions:
                for message in found:
                    _enqueue(connection, message)


def _make_subscription(session: Session, params: list[Any]) -> _Subscription:
    newest = session.snapshot.height
    if params[0] == "newHeads":
        query = None
    elif params[0] == "logs":
        query = parse_query(params[1] if len(params) > 1 else {}, newest)
    else:
        raise InvalidParams(f"no such subscription: {str(params[0])[:40]!r}, known: newHeads, logs")
    return _Subscription(subscription_id=hex(secrets.randbits(120) | 1 << 120), query=query, next_height=newest + 1)


def _collect(subscriptions: list[_Subscription], session: Session) -> tuple[int, list[list[bytes] | None]]:
    """Return the newest height and the messages due for each; None for one that asks for too much."""
    newest = session.snapshot.height
    collected: list[list[bytes] | None] = []
    heads: dict[int, list[bytes]] = {}
    for subscription in subscriptions:
        try:
            if subscription.query is not None:
                logs = find_logs_between(session.snapshot, subscription.query, subscription.next_height, newest)
                results = [_encode(view_log(placed)) for placed in logs]
            else:
                start = subscription.next_height
                if start not in heads:
                    heads[start] = _show_heads(session, start, newest)
                results = heads[start]
        except RangeTooWide as e:
            log.warning("subscription %s ends: %s", subscription.subscription_id, e.message)
            collected.append(None)
            continue
        collected.append([_make_notice(subscription.subscription_id, result) for result in results])
    return newest, collected


def _show_heads(session: Session, start: int, stop: int) -> list[bytes]:
    blocks = (session.snapshot.block(height) for height in range(start, stop + 1))
    heads = [view_block(session.snapshot, block, is_full=False) for block in blocks if block is not None]
    left_out = ("transactions", "uncles")
    return [_encode({name: value for name, value in head.items() if name not in left_out}) for head in heads]


def _make_notice(subscription_id: str, result: bytes) -> bytes:
    """Wrap what was encoded once for all that want it."""
    head = b'{"jsonrpc":"2.0","method":"eth_subscription","params":{"subscription":"'
    return head + subscription_id.encode() + b'","result":' + result + b"}}"


def _encode(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _parse_subscription_call(body: bytes) -> dict[str, Any] | None:
    """Return the call when it is one of the two that only a WebSocket knows."""
    if b"eth_subscribe" not in body and b"eth_unsubscribe" not in body:
        return None
    try:
        call = parse_json(body)
    except ValueError:
        return None
    is_ours = isinstance(call, dict) and call.get("method") in ("eth_subscribe", "eth_unsubscribe")
    return call if is_ours else None


def _enqueue(connection: _Connection, message: bytes) -> None:
    if not message or connection.is_overflown:
        return
    if connection.queue.full() or not connection.unsent.has_room(connection.peer, len(message)):
        connection.is_overflown = True
        return
    connection.queue.put_nowait(message)
    connection.num_waiting_bytes += len(message)
    connection.unsent.add(connection.peer, len(message))


async def _close_for_another(connection: _Connection) -> None:
    """Say why, and cut off whoever does not agree in time."""
    message = f"all {MAX_CONNECTIONS} places are taken and your address has most of them: try again later"
    try:
        async with asyncio.timeout(CLOSE_SECONDS):
            await connection.socket.close(code=WSCloseCode.TRY_AGAIN_LATER, message=message.encode())
    except (ConnectionError, TimeoutError):
        if connection.transport is not None:
            connection.transport.abort()


async def _send_queued(connection: _Connection) -> None:
    while True:
        message = await connection.queue.get()
        if connection.is_overflown:
            text = f"{connection.queue.qsize() + 1} messages wait: read faster"
            await connection.socket.close(code=WSCloseCode.POLICY_VIOLATION, message=text.encode())
            return
        try:
            async with asyncio.timeout(SEND_SECONDS):
                await connection.socket.send_str(message.decode())
        except ConnectionError:
            return  # the reading side sees the same and ends the connection
        except TimeoutError:
            if connection.transport is not None:
                connection.transport.abort()
            return
        connection.num_waiting_bytes -= len(message)
        connection.unsent.remove(connection.peer, len(message))
