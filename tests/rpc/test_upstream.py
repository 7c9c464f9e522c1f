"""The way from JSON-RPC to CometBFT: a connection that closes between two questions costs nobody an answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from chain.core.hashing import keccak256
from chain.rpc.faults import TransactionRefused, UpstreamDown
from chain.rpc.upstream import Upstream, open_session

RAW = b"\x02" * 40
IN_CACHE: dict[str, Any] = {
    "error": {"code": -32603, "message": "Internal error", "data": "tx already exists in cache"}
}
TAKEN: dict[str, Any] = {"result": {"code": 0}}
STATUS: dict[str, Any] = {"result": {"response": {"code": 0, "value": ""}}}

Answers = list[dict[str, Any] | None]
"""In the order of the questions; None reads the question and closes without a word."""


@asynccontextmanager
async def open_peer(answers: Answers, *, closes: bool = False) -> AsyncIterator[str]:
    """Serve HTTP on a socket of its own; ``closes`` ends each connection after its answer without announcing it."""
    left = iter(answers)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                length = int(head.split("content-length:")[1].split("\r\n")[0])
                await reader.readexactly(length)
                answer = next(left)
                if answer is None:
                    return
                body = json.dumps(answer).encode()
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
                await writer.drain()
                if closes:
                    return
        except asyncio.IncompleteReadError:
            return
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def ask(answers: Answers, question: Callable[[Upstream], Awaitable[object]], *, closes: bool = False) -> object:
    """Put one question to a peer with these answers."""

    async def run() -> object:
        async with open_peer(answers, closes=closes) as url, open_session() as session:
            return await question(Upstream(url, session))

    return asyncio.run(asyncio.wait_for(run(), 20.0))


def test_a_connection_that_was_closed_meanwhile_costs_no_answer() -> None:
    assert ask([None, STATUS], lambda upstream: upstream.get_pending_nonce(b"\x01" * 20)) == 0


def test_a_transaction_whose_answer_was_lost_is_sent_and_not_an_error() -> None:
    assert ask([None, IN_CACHE], lambda upstream: upstream.send_transaction(RAW)) == keccak256(RAW)
    assert ask([None, TAKEN], lambda upstream: upstream.send_transaction(RAW)) == keccak256(RAW)


def test_a_transaction_sent_twice_by_the_caller_is_said_to_be_known() -> None:
    with pytest.raises(TransactionRefused, match="already known"):
        ask([IN_CACHE], lambda upstream: upstream.send_transaction(RAW))


def test_a_peer_that_never_answers_is_asked_twice_and_named() -> None:
    with pytest.raises(UpstreamDown, match="disconnected"):
        ask([None, None], lambda upstream: upstream.get_pending_nonce(b"\x01" * 20))


def test_many_questions_over_connections_that_close_after_each_answer() -> None:
    async def ask_often(upstream: Upstream) -> int:
        for _ in range(40):
            await upstream.get_pending_nonce(b"\x01" * 20)
        return 40

    assert ask([STATUS] * 80, ask_often, closes=True) == 40
