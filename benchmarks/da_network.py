"""A client and four real storage nodes on this machine: rates, and the CPU seconds that each side needs for a GB.

With all processors busy, the rate is their number over the CPU seconds a GB of client and nodes together: those rows
say what limits. Their peer is what coding, hashing and folding alone need on the same bytes in the same invocation; the
rest is sockets, memory and Python. Memory that a host has taken back from this machine is fetched before each run.
"""

from __future__ import annotations

import json
import mmap
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from benchmarks.da_coding import Rates, make_row, measure_coding
from benchmarks.report import Row
from benchmarks.store_fleet import EXPIRY, GENESIS, Fleet, find_mounter, run_fleet
from da.blocking import BlobClient
from da.committee_file import CommitteeFile, encode_committee
from da.core.merkle import BULK_LEAF_BYTES
from da.core.types import Certificate, Committee, Tier

NUM_SMALL_BLOBS = 10_000
SMALL_BLOB_BYTES = 4096

SECONDS_PER_LARGE_GB = 60
"""For a large blob, there and back, beside a minute for the start."""

RAM_DISK = Path("/dev/shm")
"""Where Linux has a memory file system."""


T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """The arithmetic alone of some work, in CPU seconds a GB of the blob."""

    client_work: str
    client_seconds: float
    nodes_work: str
    nodes_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One way to four nodes."""

    fleet: Fleet
    client: BlobClient
    committee: Committee
    num_data: int
    """k of the code."""
    rates: Rates
    """How fast coding with that code goes in one thread."""
    limit: float
    """min(encode + hash, loopback) in GB/s."""
    code: str
    """For people."""
    repeat: int

    @property
    def blowup(self) -> float:
        """Bytes of all shards for a byte of the blob."""
        return len(self.committee.seats) / self.num_data


def measure_network(data: bytes, rates_8_4: Rates, repeat: int) -> list[Row]:
    """Return the rows of a client and four nodes; ``rates_8_4`` is what coding alone does."""
    rows: list[Row] = []
    limit = min(rates_8_4["hash"], max(_measure_loopback(data) for _ in range(3)))
    rates_2_2 = measure_coding(data, 2, 2, 2)
    small_pages, mounter = RAM_DISK if RAM_DISK.is_dir() else None, find_mounter()
    ram = "RAM: tmpfs with huge pages" if mounter else "RAM: tmpfs" if small_pages else "no tmpfs: disk, without sync"
    with (
        run_fleet(None if mounter else small_pages, mounter=mounter) as fleet,
        BlobClient() as bulk,
        BlobClient(has_bulk=False) as http,
    ):

        def make_route(client: BlobClient, committee: Committee, num_data: int, rates: Rates, code: str) -> Route:
            return Route(
                fleet=fleet,
                client=client,
                committee=committee,
                num_data=num_data,
                rates=rates,
                limit=limit,
                code=code,
                repeat=repeat,
            )

        wide = fleet.seat(12, 1)
        for way, client in (("bulk", bulk), ("http", http)):
            route = make_route(client, wide, 8, rates_8_4, f"8+4, 12 seats on 4 nodes, {ram}, over {way}")
            certificate, written = measure_write(f"disperse_ram_{way}", route, data, Tier.TEMPORARY)
            rows += [*written, *measure_read(f"read_verify_{way}", route, certificate)]
        narrow = fleet.seat(4, 2)
        route = make_route(bulk, narrow, 2, rates_2_2, f"2 of 4, Byzantine, {ram}, over bulk")
        rows += measure_write("disperse_ram_bulk_2of4", route, data, Tier.TEMPORARY)[1]
        rows.append(measure_small(narrow, bulk))
    reference = next(row.value for row in rows if row.name == "disperse_ram_bulk")
    return [*rows, *measure_media(data, route, rates_8_4, reference, mounter, small_pages)]


def measure_media(
    data: bytes, route: Route, rates: Rates, reference: float, mounter: Sequence[str], small_pages: Path | None
) -> list[Row]:
    """Return the rows of 8+4 over bulk where the bytes lie elsewhere; their peer is ``reference``, homes in memory."""
    media = [(Tier.HOT, "disk_bulk", f"fdatasync before each receipt, {tempfile.gettempdir()}", run_fleet(None))]
    if small_pages:
        media.append((Tier.TEMPORARY, "ram_small_pages", f"{small_pages}, pages of 4 KiB", run_fleet(small_pages)))
    if mounter:
        what = "homes on disk, temporary bodies on tmpfs with huge pages (--ram)"
        media.append((Tier.TEMPORARY, "ram_tier", what, run_fleet(None, mounter=mounter, has_ram=True)))
    rows = []
    for tier, name, what, started in media:
        with started as fleet, BlobClient() as client:
            there = replace(
                route,
                fleet=fleet,
                client=client,
                committee=fleet.seat(12, 1),
                num_data=8,
                rates=rates,
                code=f"8+4, 12 seats on 4 nodes, {what}, over bulk",
            )
            rows += measure_write(f"disperse_{name}", there, data, tier, peer=("disperse_ram_bulk", reference))[1]
    return rows


def measure_write(
    name: str, route: Route, data: bytes, tier: Tier, *, peer: tuple[str, float] | None = None
) -> tuple[Certificate, list[Row]]:
    """Return the last certificate, and the best rate of dispersals and what they cost."""
    fresh = bytearray(data)

    def write() -> Certificate:
        fresh[:16] = os.urandom(16)  # a blob that no node has yet
        return route.client.disperse(
            fresh,
            committee=route.committee,
            genesis_hash=GENESIS,
            tier=tier,
            expiry=EXPIRY,
            leaf_bytes=BULK_LEAF_BYTES,
            num_data=route.num_data,
        )

    needs = Needs(
        client_work="coding, hashing, folding",
        client_seconds=1 / route.rates["all"],
        nodes_work="hashing, folding",
        nodes_seconds=1 / route.rates["blake3"] + route.blowup / route.rates["fold"],
    )
    return _measure(name, route, write, len(data), needs, route.code, peer)


def measure_read(name: str, route: Route, certificate: Certificate) -> list[Row]:
    """Return the best rate of verified reads and what they cost."""
    terms = certificate.terms

    def read() -> int:
        return len(route.client.retrieve(terms.blob, committee=route.committee, max_bytes=terms.size_bytes).data)

    # k shards are hashed as they come, the others when they are coded again
    needs = Needs(
        client_work="coding, hashing", client_seconds=1 / route.rates["hash"], nodes_work="", nodes_seconds=0.0
    )
    return _measure(name, route, read, terms.size_bytes, needs, f"{route.code}, coded again", None)[1]


def measure_small(committee: Committee, client: BlobClient) -> Row:
    """Return how many small blobs are certified a second, in batches and one by one."""
    blobs = [os.urandom(SMALL_BLOB_BYTES) for _ in range(NUM_SMALL_BLOBS)]
    start = time.perf_counter()
    client.disperse_batch(blobs, committee=committee, genesis_hash=GENESIS, tier=Tier.TEMPORARY, expiry=EXPIRY)
    batched = NUM_SMALL_BLOBS / (time.perf_counter() - start)
    singles = blobs[: NUM_SMALL_BLOBS // 100]
    start = time.perf_counter()
    for data in singles:
        client.disperse(data + b"+", committee=committee, genesis_hash=GENESIS, tier=Tier.TEMPORARY, expiry=EXPIRY)
    alone = len(singles) / (time.perf_counter() - start)
    conditions = f"{NUM_SMALL_BLOBS} blobs of {SMALL_BLOB_BYTES} bytes, 2 of 4, RAM, batches of 512, certificates each"
    return make_row("small_blobs", batched, "blobs/s", "one blob a call, one after the other", alone, conditions)


def measure_large(num_bytes: int) -> list[Row]:
    """Return what memory and time a blob of ``num_bytes`` takes, in a process of its own, from file to file."""
    with run_fleet(None) as fleet, tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "in"
        block = os.urandom(1 << 20)
        with source.open("wb") as file:
            for start in range(0, num_bytes, len(block)):
                file.write((start.to_bytes(8, "big") + block[8:])[: num_bytes - start])
        target = CommitteeFile(committee=fleet.seat(4, 1), genesis_hash=GENESIS)
        (Path(folder) / "committee.json").write_text(encode_committee(target))
        arguments = [str(Path(folder) / name) for name in ("committee.json", "in", "out")]
        done = subprocess.run(
            [sys.executable, "-c", "from benchmarks.large_blob import main; main()", *arguments],
            stdout=subprocess.PIPE,
            text=True,
            timeout=60 + SECONDS_PER_LARGE_GB * num_bytes / 1e9,
            check=True,
        )
        said = json.loads(done.stdout)
    conditions = (
        f"{num_bytes / 1e9:g} GB from a file to 4 nodes (2 of 4, disk) and back into a file, in a process of its own"
    )
    size, peak = num_bytes / 1e6, said["peak_bytes"] / 1e6
    writing, reading = (num_bytes / said[key] / 1e9 for key in ("write_seconds", "read_seconds"))
    return [
        make_row("large_blob_memory", peak, "MB RSS", "the blob", size, conditions),
        make_row("large_blob_write", writing, "GB/s", "", 0.0, conditions),
        make_row("large_blob_read", reading, "GB/s", "", 0.0, conditions),
    ]


def _measure(
    name: str,
    route: Route,
    work: Callable[[], T],
    num_bytes: int,
    needs: Needs,
    conditions: str,
    peer: tuple[str, float] | None,
) -> tuple[T, list[Row]]:
    """Do ``work`` several times; returns its last result, the row of its best rate, and two of its CPU seconds."""
    best, client, nodes, result = float("inf"), 0.0, 0.0, None
    for _ in range(route.repeat):
        _touch_memory(round(num_bytes * (1 + route.blowup)))
        before = (time.process_time(), route.fleet.get_cpu_seconds())
        start = time.perf_counter()
        result = work()
        best = min(best, time.perf_counter() - start)
        client += time.process_time() - before[0]
        nodes += route.fleet.get_cpu_seconds() - before[1]
    assert result is not None, "at least one run"
    num_gb = route.repeat * num_bytes / 1e9
    client, nodes = client / num_gb, nodes / num_gb
    together = f"{client + nodes:.2f} CPU-seconds a GB"
    busy = f"at most {(os.cpu_count() or 1) / (client + nodes):.2f} GB/s with all processors busy"
    said = f"{conditions}; {together}, client and nodes together: {busy}"
    peer_name, peer_value = peer or ("min(encode + hash, loopback)", route.limit)
    rate = num_bytes / best / 1e9
    return result, [
        make_row(name, rate, "GB/s", peer_name, peer_value, said, limit=route.limit),
        make_row(f"{name}_cpu_client", client, "CPU-s/GB", needs.client_work, needs.client_seconds, conditions),
        make_row(f"{name}_cpu_nodes", nodes, "CPU-s/GB", needs.nodes_work, needs.nodes_seconds, conditions),
    ]


def _touch_memory(num_bytes: int) -> None:
    """Use so much memory once and give it back.

    A virtual machine's host takes back what lies idle for some seconds, and bringing it back costs ten times as much as
    the system's own first use of a page: 2.3 CPU-seconds a GB where this was written. That is nobody's dispersal.
    """
    with mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(mmap.MADV_HUGEPAGE)  # as the host counts it
        np.frombuffer(memory, dtype=np.uint8)[:: mmap.PAGESIZE] = 1


def _measure_loopback(data: bytes) -> float:
    """Return what one TCP connection to this machine carries in GB/s."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        buffer = bytearray(1 << 20)

        def drain() -> None:
            peer, _ = listener.accept()
            with peer:
                while peer.recv_into(buffer):
                    pass

        thread = threading.Thread(target=drain)
        thread.start()
        with socket.create_connection(listener.getsockname()) as sock:
            start = time.perf_counter()
            sock.sendall(data)
        thread.join()
        return len(data) / (time.perf_counter() - start) / 1e9
