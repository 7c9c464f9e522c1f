"""Case 60: kill -9 of a real node at each point of a PUT.  No receipt without bytes, no orphan, counter = disk."""

from __future__ import annotations

import http.client
import json
import os
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from da.protocol import PutRequest, decode_receipt, encode_put, shard_path
from storage.core.quota import compute_charge_bytes

pytestmark = pytest.mark.integration

BODY = os.urandom(2_000_000)


def put(url: str, shard: Any) -> bytes | None:
    """Put a shard and return the receipt; None when the node died."""
    offer = shard.offer
    path, fields = encode_put(
        PutRequest(
            blob=offer.blob,
            seat=offer.shard,
            epoch=offer.epoch,
            tier=offer.tier,
            expiry=offer.expiry,
            header=offer.header,
        )
    )
    request = urllib.request.Request(url + path, data=shard.body, headers=fields, method="PUT")
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            receipt: bytes = answer.read()
            return receipt
    except urllib.error.HTTPError as error:
        raise AssertionError(error.read()) from error
    except (urllib.error.URLError, http.client.HTTPException, ConnectionError):
        return None


def get(url: str, path: str) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(url + path, timeout=20) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def get_space(url: str) -> dict[str, int]:
    space: dict[str, int] = json.loads(get(url, "/v1/status")[1])["space"]
    return space


@pytest.mark.parametrize(
    ("point", "is_kept"),
    [("during-body", False), ("after-sync", False), ("after-rename", True), ("after-index", True)],
)
def test_killed_in_the_middle_of_a_put(
    fleet: Any, make_shard: Any, get_files: Callable[[Path], dict[str, int]], point: str, is_kept: bool
) -> None:
    shard, other = make_shard(BODY), make_shard(b"kept before")
    node = fleet.start(point, kill_at=point, kill_passes=2)
    fleet.seat([node])
    assert put(node.url, other) is not None
    assert put(node.url, shard) is None, f"a receipt came out though the node died {point}"
    assert node.wait() == -9
    events = [event["event"] for event in node.read_trace() if event["blob"] == shard.offer.blob.hex()]
    assert "admitted" in events
    assert "signed" not in events

    node = fleet.start(point)
    status, body = get(node.url, shard_path(shard.offer.blob, 0))
    assert (status, body == BODY) == ((200, True) if is_kept else (404, False))
    assert get(node.url, shard_path(other.offer.blob, 0))[1] == other.body
    kept = [other, shard] if is_kept else [other]
    space = get_space(node.url)
    assert space["num_shards"] == len(kept)
    assert space["used_bytes"] == sum(compute_charge_bytes(len(one.body)) for one in kept)
    files = get_files(node.home)
    assert sorted(name.rpartition(".")[2] for name in files) == sorted(["shard", "terms"] * len(kept))

    receipt = put(node.url, shard)
    assert receipt is not None
    assert decode_receipt(receipt).key == node.key
    assert get(node.url, shard_path(shard.offer.blob, 0))[1] == BODY
    assert get_space(node.url)["used_bytes"] == sum(compute_charge_bytes(len(one.body)) for one in (shard, other))
    assert node.stop() == 0
    assert get_files(node.home).keys() == {
        f"{one.offer.blob.hex()}.0.{suffix}" for one in (shard, other) for suffix in ("shard", "terms")
    }
