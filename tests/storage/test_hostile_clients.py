"""Clients that mean no good, against a live node: garbage, half frames, thousands of idle connections, slow readers.

After each a large blob can be put and read at once, and what was held is given back.
"""

from __future__ import annotations

import json
import random
import resource
import socket
import struct
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psutil
import pytest

from da.blocking import BlobClient
from da.bulk import MAGIC, MAX_JSON_BYTES
from da.core.types import BlobId, Committee, Height, Tier
from da.protocol import PutRequest, encode_put
from storage.node.connections import MAX_CONNECTIONS
from storage.node.server import MAX_DOWNLOADS
from storage.node.slots import PEER_SHARE_PERCENT

GENESIS_HASH = bytes(range(32))
DATA = random.Random(5).randbytes(3_000_000)
RSS_BYTES = 400 << 20
"""Of the node, whatever is done to it: its slow readers hold two MiB each."""

pytestmark = pytest.mark.integration


class Town:
    """One node and what it listens on."""

    def __init__(self, fleet: Any) -> None:
        (self.node,) = fleet.start_all(["n0"], body_timeout_seconds=6.0)
        self.committee: Committee = fleet.seat([self.node])
        self.process = psutil.Process(self.node.process.pid)
        self.http_port = int(self.node.url.rpartition(":")[2])
        self.bulk_port = int(self.get_status()["bulkPort"])

    def get_status(self, seconds: float = 10.0) -> dict[str, Any]:
        with urllib.request.urlopen(self.node.url + "/v1/status", timeout=seconds) as answer:
            value: dict[str, Any] = json.load(answer)
        return value

    def work(self, data: bytes = DATA) -> BlobId:
        """Put a blob over the bulk port and read it back."""
        with BlobClient(deadline_seconds=5) as client:
            blob = client.disperse(
                data, committee=self.committee, genesis_hash=GENESIS_HASH, tier=Tier.HOT, expiry=Height(5_000)
            ).terms.blob
            assert client.retrieve(blob, committee=self.committee, max_bytes=len(data)).data == data
        assert self.node.process.poll() is None
        assert self.process.memory_info().rss < RSS_BYTES
        return blob


@pytest.fixture(scope="module")
def town(shared_fleet: Any) -> Town:
    return Town(shared_fleet)


@contextmanager
def opened(port: int, count: int, first_words: bytes = b"") -> Iterator[list[socket.socket]]:
    """Hold connections that say ``first_words`` and no more."""
    sockets = []
    try:
        for _ in range(count):
            connection = socket.create_connection(("127.0.0.1", port), timeout=5)
            sockets.append(connection)
            with suppress(OSError):
                connection.sendall(first_words)
        yield sockets
    finally:
        for connection in sockets:
            connection.close()


def test_garbage_and_half_frames_on_the_bulk_port(town: Town) -> None:
    chance = random.Random(1)
    town.work()
    before = town.process.num_fds()
    for _ in range(60):
        words = [
            chance.randbytes(chance.randrange(1, 300)),
            MAGIC + struct.pack(">I", 0xFFFFFFFF) + chance.randbytes(50),
            MAGIC + struct.pack(">I", MAX_JSON_BYTES) + b"{" * 100,
            MAGIC + struct.pack(">I", 2) + b"{}" + chance.randbytes(40),
            MAGIC[: chance.randrange(1, 4)],
            b"GET /v1/status HTTP/1.1\r\n\r\n",
        ]
        for first_words in words:
            with opened(town.bulk_port, 1, first_words) as (connection,):
                if chance.random() < 0.3:
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
    # three times as many half requests as the port has places, all held
    with opened(town.bulk_port, 400, MAGIC + struct.pack(">I", 5_000)):
        town.work()
    assert town.process.num_fds() <= before + 150, "the port's own places at most"


def test_altered_requests_are_answered_and_never_a_defect(town: Town, make_shard: Any) -> None:
    """Every route, with bytes of a good request changed, doubled and cut: a 4xx or the end, no 500, no traceback."""
    chance = random.Random(2)
    shard = make_shard(b"x" * 2_000)
    put = PutRequest(
        blob=shard.offer.blob,
        seat=shard.offer.shard,
        epoch=shard.offer.epoch,
        tier=Tier.HOT,
        expiry=Height(5_000),
        header=shard.offer.header,
    )
    path, fields = encode_put(put)
    base = path.partition("?")[0]
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    good = [
        f"PUT {path} HTTP/1.1\r\nHost: n\r\n{lines}Content-Length: 2000\r\n\r\n".encode() + shard.body,
        b"PUT /v1/batches/0?epoch=1&tier=1&expiry=5000 HTTP/1.1\r\nHost: n\r\nContent-Length: 40\r\n\r\n" + bytes(40),
        *(
            f"GET {route} HTTP/1.1\r\nHost: n\r\nRange: bytes=0-9\r\n\r\n".encode()
            for route in (
                base,
                f"{base}/leaves/0",
                f"{base}/leaves?first=0&count=1",
                f"{base}/fold?nonce={'ab' * 32}",
                f"/v1/blobs/{put.blob.hex()}/header",
                "/v1/inventory?epoch=1&after=",
                "/v1/status",
                "/metrics",
                "/",
            )
        ),
    ]
    seen: Counter[int] = Counter()
    for number in range(400):
        words = bytearray(good[number % len(good)])
        for _ in range(chance.randrange(1, 3)):
            at = chance.randrange(min(len(words), 400))
            change = chance.randrange(3)
            if change == 0:
                words[at] = chance.randrange(256)
            elif change == 1:
                words[at:at] = words[at : at + chance.randrange(1, 12)]
            else:
                del words[at : at + chance.randrange(1, 6)]
        with opened(town.http_port, 1, bytes(words)) as (connection,):
            connection.settimeout(0.1)  # what is half a request gets no answer
            with suppress(OSError):
                answer = connection.recv(100)
                if answer.startswith(b"HTTP/1.1 "):
                    seen[int(answer[9:12])] += 1
    assert not [status for status in seen if status >= 500 and status not in (501, 505, 507)], seen
    assert sum(count for status, count in seen.items() if 400 <= status < 500) > 60, seen
    assert "Traceback" not in (town.node.home.parent / "n0.log").read_text()
    town.work()


def test_thousands_of_idle_connections(town: Town, wait_until: Any) -> None:
    with (
        opened(town.bulk_port, 300),
        opened(town.http_port, 700),
        opened(town.http_port, 700, b"GET /v1/st"),  # a request that never ends
    ):
        town.work()
        wait_until(lambda: town.process.num_fds() < MAX_CONNECTIONS + 300, "the longest idle are closed, others stay")
        assert town.get_status()["space"]["num_shards"] >= 1
        town.work()
    wait_until(lambda: town.process.num_fds() < 250, "nothing is held any more")


def test_readers_that_take_nothing_are_cut_off(town: Town, wait_until: Any) -> None:
    blob = town.work(random.Random(8).randbytes(12_000_000))  # more than the buffers between
    request = f"GET /v1/blobs/{blob.hex()}/shards/0 HTTP/1.1\r\nHost: node\r\n\r\n".encode()
    most = -(-MAX_DOWNLOADS * PEER_SHARE_PERCENT // 100)
    sockets = []
    try:
        for _ in range(most + 20):
            connection = socket.socket()
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            connection.bind(("127.0.0.2", 0))  # an address of their own, which is the one that gets no more
            connection.connect(("127.0.0.1", town.http_port))
            connection.sendall(request)
            sockets.append(connection)
        sockets[-1].settimeout(5)
        assert b"429" in sockets[-1].recv(100), "one address can't take all places"
        town.work()
        wait_until(lambda: town.process.num_fds() < 250, "who takes nothing is cut off", 60.0)
        town.work()
    finally:
        for connection in sockets:
            connection.close()


def test_a_process_without_descriptors_goes_on_when_it_has_some(town: Town, wait_until: Any) -> None:
    soft, hard = resource.prlimit(town.process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(town.process.pid, resource.RLIMIT_NOFILE, (town.process.num_fds() + 60, hard))
    try:
        with opened(town.http_port, 150):

            def is_answered() -> bool:
                with suppress(OSError):
                    return bool(town.get_status(1.0))
                return False

            wait_until(is_answered, "the longest idle were closed, and it answers")
    finally:
        resource.prlimit(town.process.pid, resource.RLIMIT_NOFILE, (soft, hard))
    town.work()
