"""A whole node in this process: what ends it, and that an end is an end."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from contracts.bindings.types import StorageNode, StorageNodeState
from storage.core.errors import NotFunded, WrongChain
from storage.node.config import NodeConfig
from storage.node.keys import ReceiptKey
from storage.node.registration import Funds
from storage.node.service import run_node

ADDRESS = "0x" + "Ab" * 20


class Poor:
    """RegistrationPort of an account without funds."""

    def get_node(self) -> StorageNode:
        return StorageNode(
            operator=ADDRESS, key=bytes(32), url="", capacity_bytes=0, state=StorageNodeState.NONE, registered_height=0
        )

    def get_funds(self) -> Funds:
        return Funds(balance=0, needed=1, where="on chain id 7")

    def get_genesis_hash(self) -> bytes:
        return bytes(32)

    def register(self, **_: Any) -> None:
        raise AssertionError("there was nothing to pay with")

    def update(self, **_: Any) -> None:
        raise AssertionError("there was nothing to pay with")


def make_config(tmp_path: Path) -> NodeConfig:
    return NodeConfig(
        home=tmp_path / "home",
        host="127.0.0.1",
        port=0,
        capacity_bytes=1 << 20,
        poll_seconds=0.01,
        funds_deadline_seconds=0.1,
    )


async def test_without_funds_it_ends_and_says_for_whom(tmp_path: Path, chain: Any) -> None:
    with pytest.raises(NotFunded, match=f"localnet fund {ADDRESS}"):
        await asyncio.wait_for(
            run_node(make_config(tmp_path), chain, ReceiptKey(bytes(32)), registration=Poor(), address=ADDRESS), 10
        )


async def test_it_serves_until_it_is_stopped_and_starts_again(tmp_path: Path, chain: Any) -> None:
    for _ in range(2):
        stop, listening = asyncio.Event(), asyncio.get_running_loop().create_future()
        node = asyncio.create_task(
            run_node(make_config(tmp_path), chain, ReceiptKey(bytes(32)), on_listen=listening.set_result, stop=stop)
        )
        url = await asyncio.wait_for(listening, 10)
        async with aiohttp.ClientSession() as session, session.get(url + "/v1/status") as answer:
            assert (await answer.json())["node"]["registration"] is None
        stop.set()
        await asyncio.wait_for(node, 5)
        async with aiohttp.ClientSession() as session:
            with pytest.raises(aiohttp.ClientConnectionError):
                await session.get(url + "/v1/status")


async def test_a_home_of_another_chain_ends_it(tmp_path: Path, chain: Any) -> None:
    config = make_config(tmp_path)
    config.home.mkdir()
    (config.home / "genesis").write_text("ff" * 32)
    with pytest.raises(WrongChain, match="ff" * 32):
        await asyncio.wait_for(run_node(config, chain, ReceiptKey(bytes(32))), 10)
