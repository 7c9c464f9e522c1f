"""A running node whose files may grow no more: it says so, reads on, and goes on when there is room.

The limit on the size of files (RLIMIT_FSIZE) is set from outside on the live process, at changing heights, so that it
hits bodies, terms, both databases, segments and the trace in any order. Real processes, no mounts.
"""

from __future__ import annotations

import json
import random
import resource
import urllib.request
from typing import Any

import pytest

from da.blocking import BlobClient
from da.core.errors import NotEnoughReceipts
from da.core.types import BlobId, Height, Tier
from storage.node.doctor import diagnose
from storage.node.engine import StoreEngine

GENESIS_HASH = bytes(range(32))


def get_status(node: Any) -> dict[str, Any]:
    with urllib.request.urlopen(node.url + "/v1/status", timeout=5) as answer:
        value: dict[str, Any] = json.load(answer)
    return value


def limit(node: Any, num_bytes: int) -> None:
    """Let no file of a node grow beyond a size."""
    _, hard = resource.prlimit(node.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(node.process.pid, resource.RLIMIT_FSIZE, (num_bytes, hard))


@pytest.mark.integration
def test_a_live_node_without_room_refuses_reads_and_recovers(fleet: Any, wait_until: Any) -> None:
    (node,) = fleet.start_all(["n0"], is_keeping=True)
    committee = fleet.seat([node])
    chance = random.Random(7)
    kept: dict[BlobId, bytes] = {}
    refused = 0
    reasons: list[str] = []

    def put(client: BlobClient, size: int, tier: Tier) -> bool:
        data = chance.randbytes(size)
        try:
            certificate = client.disperse(
                data, committee=committee, genesis_hash=GENESIS_HASH, tier=tier, expiry=Height(5_000)
            )
        except NotEnoughReceipts as error:
            reasons.append(str(error))
            return False
        kept[certificate.terms.blob] = data
        return True

    with BlobClient(deadline_seconds=5) as client:
        for tier in Tier:
            assert put(client, 40_000, tier)
        for num_bytes in (0, 4_096, 8_192, 20_000, 30_000, 100_000, 300_000):
            limit(node, num_bytes)
            for tier in Tier:
                for size in (10, 150_000, 1_400_000):
                    refused += not put(client, size, tier)
            for blob, data in kept.items():
                assert client.retrieve(blob, committee=committee, max_bytes=1 << 22).data == data
            fleet.save_chain(height=fleet.chain["height"] + 1)
        assert refused == len(reasons) >= 30
        assert all("507 Full" in reason for reason in reasons), reasons
        assert node.process.poll() is None, "a full disk ends no node"
        assert get_status(node)["space"]["reserved_bytes"] == 0
        limit(node, resource.RLIM_INFINITY)
        for tier in Tier:
            assert put(client, 1_400_000, tier)
            assert put(client, 10, tier)
        for blob, data in kept.items():
            assert client.retrieve(blob, committee=committee, max_bytes=1 << 22).data == data
        # and what ends while nothing can be written ends later
        limit(node, 0)
        fleet.save_chain(height=6_000)
        wait_until(lambda: get_status(node)["chain"]["height"] == 6_000, "the new height")
        fleet.save_chain(height=6_050)
        limit(node, resource.RLIM_INFINITY)

        def is_empty() -> bool:
            fleet.save_chain(height=fleet.chain["height"] + 200)
            return bool(get_status(node)["space"]["num_shards"] == 0)

        wait_until(is_empty, "everything has ended")
    assert get_status(node)["space"]["used_bytes"] == 0
    assert node.stop() == 0
    engine = StoreEngine(node.home, capacity_bytes=1 << 40)
    found = diagnose(engine)
    engine.close()
    assert (found.num_shards, found.get_advice()) == (0, [])
