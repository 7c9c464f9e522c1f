"""eth_subscribe over a WebSocket, with web3.py and by hand."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import aiohttp
from web3 import AsyncWeb3, WebSocketProvider

sys.path.insert(0, str(Path(__file__).parent))

from schemas import HEADER, LOG, QUANTITY, check

from contracts.bindings.encoding import topic_of

STAKING = "0x0000000000000000000000000000000000001002"
DEADLINE_SECONDS = 20.0


def socket_url(solo: Any) -> str:
    return str(solo.url).replace("http://", "ws://")


async def mine(solo: Any, num_blocks: int) -> None:
    await asyncio.to_thread(solo.chain.mine, num_blocks)


async def test_web3_is_told_of_each_new_block_once(solo: Any) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS), AsyncWeb3(WebSocketProvider(socket_url(solo))) as w3:
        assert await w3.eth.chain_id == 4242
        subscription = await w3.eth.subscribe("newHeads")
        start = solo.chain.height
        await mine(solo, 5)
        heads = []
        async for message in w3.socket.process_subscriptions():
            heads.append(message["result"])
            if len(heads) == 5:
                break
        assert [head["number"] for head in heads] == list(range(start + 1, start + 6))
        assert [head["parentHash"] for head in heads[1:]] == [head["hash"] for head in heads[:-1]]
        assert await w3.eth.unsubscribe(subscription)


async def test_a_head_has_the_shape_of_the_schema(solo: Any) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS), aiohttp.ClientSession() as session:  # noqa: SIM117
        async with session.ws_connect(socket_url(solo)) as socket:
            await socket.send_json({"jsonrpc": "2.0", "id": 1, "method": "eth_subscribe", "params": ["newHeads"]})
            subscription = (await socket.receive_json())["result"]
            check(subscription, QUANTITY)
            await mine(solo, 1)
            notice = await socket.receive_json()
            assert set(notice) == {"jsonrpc", "method", "params"}
            assert notice["params"]["subscription"] == subscription
            check(notice["params"]["result"], HEADER)


async def test_logs_that_match_and_no_others(solo: Any) -> None:
    wanted = {"address": STAKING, "topics": ["0x" + topic_of("Staking", "Bonded").hex()]}
    async with asyncio.timeout(DEADLINE_SECONDS), aiohttp.ClientSession() as session:  # noqa: SIM117
        async with session.ws_connect(socket_url(solo)) as socket:
            await socket.send_json({"jsonrpc": "2.0", "id": 1, "method": "eth_subscribe", "params": ["logs", wanted]})
            subscription = (await socket.receive_json())["result"]
            await asyncio.to_thread(solo.faucet.transfer, "0x" + "00" * 18 + "beef", 1)
            outcome = await asyncio.to_thread(lambda: solo.faucet.send("Staking", "bond", value=1))
            notice = await socket.receive_json()
            assert notice["method"] == "eth_subscription"
            assert notice["params"]["subscription"] == subscription
            check(notice["params"]["result"], LOG)
            assert notice["params"]["result"]["transactionHash"] == "0x" + outcome.transaction_hash.hex()
            await socket.send_json({"jsonrpc": "2.0", "id": 2, "method": "eth_unsubscribe", "params": [subscription]})
            assert (await socket.receive_json())["result"] is True
            await mine(solo, 3)
            await socket.send_json({"jsonrpc": "2.0", "id": 3, "method": "eth_unsubscribe", "params": [subscription]})
            assert await socket.receive_json() == {"jsonrpc": "2.0", "id": 3, "result": False}


async def test_subscriptions_of_a_connection_name_a_bounded_number_of_things(solo: Any) -> None:
    many = {"address": [f"0x{number:040x}" for number in range(1_000)]}
    call = {"jsonrpc": "2.0", "id": 1, "method": "eth_subscribe", "params": ["logs", many]}
    async with asyncio.timeout(DEADLINE_SECONDS), aiohttp.ClientSession() as session:  # noqa: SIM117
        async with session.ws_connect(socket_url(solo)) as socket:
            answers = []
            for _ in range(3):
                await socket.send_json(call)
                answers.append(await socket.receive_json())
            assert ["error" in answer for answer in answers] == [False, False, True]
            assert "3000 addresses and topics, at most 2000" in answers[2]["error"]["message"]


async def test_invalid_messages_are_answered_and_the_connection_stays(solo: Any) -> None:
    bodies = ["{", '{"id":1,"method":"eth_subscribe"}', '{"id":1,"method":"eth_subscribe","params":["pending"]}']
    async with asyncio.timeout(DEADLINE_SECONDS), aiohttp.ClientSession() as session:  # noqa: SIM117
        async with session.ws_connect(socket_url(solo)) as socket:
            for body in bodies:
                await socket.send_str(body)
                assert json.loads(await socket.receive_str())["error"]["code"] in (-32700, -32602)
            await socket.send_json({"jsonrpc": "2.0", "id": 9, "method": "eth_chainId"})
            assert (await socket.receive_json())["result"] == hex(4242)


async def test_who_was_cut_off_misses_no_event_of_a_full_block(solo: Any) -> None:
    """Case 26: 300 transactions in one block while nobody listens; blocks and a filter tell all of them, once."""
    wanted = {"address": STAKING, "topics": ["0x" + topic_of("Staking", "Bonded").hex()]}

    async def ask(socket: aiohttp.ClientWebSocketResponse, method: str, *params: Any) -> Any:
        await socket.send_json({"jsonrpc": "2.0", "id": method, "method": method, "params": params})
        while (message := await socket.receive_json()).get("id") != method:
            pass
        return message["result"]

    def fill_a_block() -> list[str]:
        solo.chain.is_automatic = False
        sent, raws = [], []
        for _ in range(300):
            raw = solo.faucet.sign("Staking", "bond", value=1, gas=120_000)
            raws.append(raw)
            sent.append(solo.client.request("eth_sendRawTransaction", "0x" + raw.hex()))
        solo.chain.mine(4)
        for raw in raws:
            solo.faucet.forget(raw)
        return sent

    async with asyncio.timeout(60), aiohttp.ClientSession() as session:
        async with session.ws_connect(socket_url(solo)) as socket:
            assert await ask(socket, "eth_subscribe", "logs", wanted)
            log_filter = await ask(socket, "eth_newFilter", wanted)
            seen = int(await ask(socket, "eth_blockNumber"), 16)
        sent = await asyncio.to_thread(fill_a_block)
        async with session.ws_connect(socket_url(solo)) as socket:
            newest = await ask(socket, "eth_blockNumber")
            span = {"fromBlock": hex(seen + 1), "toBlock": newest}
            read = await ask(socket, "eth_getLogs", {**wanted, **span})
            changes = await ask(socket, "eth_getFilterChanges", log_filter)
            again = await ask(socket, "eth_getFilterChanges", log_filter)
    assert [log["transactionHash"] for log in read] == sent
    assert (changes, again) == (read, [])
    assert len({log["blockNumber"] for log in read}) == 1, "one block held them all"


async def test_server_stops_under_an_open_socket(solo: Any, rpc_process: Any, tmp_path: Path) -> None:
    server = await asyncio.to_thread(rpc_process, solo.chain.home, solo.chain.url, tmp_path / "log")
    async with asyncio.timeout(60), aiohttp.ClientSession() as session:  # noqa: SIM117
        async with session.ws_connect(server.url.replace("http://", "ws://")) as socket:
            await socket.send_json({"jsonrpc": "2.0", "id": 1, "method": "eth_subscribe", "params": ["newHeads"]})
            assert "result" in await socket.receive_json()
            stopped = asyncio.create_task(asyncio.to_thread(server.stop))
            message = await socket.receive()
            assert (message.type, message.data) == (aiohttp.WSMsgType.CLOSE, aiohttp.WSCloseCode.GOING_AWAY)
            assert await stopped == 0
