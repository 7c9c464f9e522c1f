"""What keeping costs: bytes read for a byte rebuilt, and how fast kept checkpoints come back.

Four real nodes on this machine; committees of more seats have the nodes in turns. The peer is measured in the same
invocation on the same bytes.
"""

from __future__ import annotations

import asyncio
import io
import random
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import zstandard

from benchmarks.report import Row, write_report
from benchmarks.store_fleet import EXPIRY, GENESIS, Fleet, run_fleet
from da.blocking import BlobClient
from da.core.blob import compute_shard_bytes, encode_header
from da.core.types import BlobId, Committee, ShardIndex, Tier
from da.counting import Traffic
from da.links import SeatLinks
from storage.archiving import Chain, read_archive, write_archive
from storage.node.engine import StoreEngine
from storage.node.pacing import Pacer
from storage.node.rebuilding import Rebuild, rebuild_shard
from storage.node.upload import ShardOffer

BLOB_BYTES = 64 * 2**20
"""Of each blob that is written, lost in part, and read."""

UNPACED = 1 << 40
"""Bytes a second: no limit."""


def main() -> None:
    """Measure and write ``benchmarks/results/storage.json``."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="archipelago-bench-") as directory, run_fleet(None) as fleet:
        data = random.Random(1).randbytes(BLOB_BYTES)
        with BlobClient(deadline_seconds=60) as client:
            for epoch, (num_seats, tier) in enumerate(((4, Tier.HOT), (12, Tier.HOT), (24, Tier.COLD)), start=1):
                rows += measure_repair(fleet, client, Path(directory), data, epoch, num_seats, tier)
            rows += measure_restore(fleet, client, epoch=4)
    rows += measure_archives()
    write_report("storage", rows)


def measure_repair(
    fleet: Fleet, client: BlobClient, directory: Path, data: bytes, epoch: int, num_seats: int, tier: Tier
) -> list[Row]:
    """Lose one shard and rebuild it from the others, beside reading the whole blob."""
    committee = fleet.seat(num_seats, epoch)
    certificate = client.disperse(
        data, committee=committee, genesis_hash=GENESIS, tier=tier, expiry=EXPIRY, leaf_bytes=65536
    )
    blob = certificate.terms.blob
    begun = time.perf_counter()
    client.retrieve(blob, committee=committee, max_bytes=BLOB_BYTES)
    read_rate = BLOB_BYTES / (time.perf_counter() - begun) / 1e9
    outcome, seconds = asyncio.run(_rebuild(directory / f"home{epoch}", blob, committee, tier))
    code = f"{len(committee.seats)} seats, {tier.name.lower()}, {BLOB_BYTES >> 20} MiB"
    read_ratio = outcome.bytes_read / outcome.bytes_rebuilt
    return [
        Row(
            name="repair_ratio" if num_seats == 4 else f"repair_ratio_{num_seats}",
            value=read_ratio,
            unit="bytes read / byte rebuilt",
            peer="whole blob",
            peer_value=BLOB_BYTES / outcome.bytes_rebuilt,
            conditions=f"{code}; one shard of {outcome.bytes_rebuilt} bytes from any k others, hashed and checked",
        ),
        Row(
            name=f"repair_read_rate_{num_seats}",
            value=outcome.bytes_read / seconds / 1e9,
            unit="GB/s",
            peer="verified read",
            peer_value=read_rate,
            conditions=f"{code}; bytes read by the repair, the shard durable at the end; not rate-limited",
        ),
    ]


async def _rebuild(home: Path, blob: BlobId, committee: Committee, tier: Tier) -> tuple[Rebuild, float]:
    engine, links = StoreEngine(home, capacity_bytes=1 << 40), SeatLinks(Traffic())
    try:
        with ThreadPoolExecutor(4) as executor:
            header = await links.fetch_header(committee.seats[1], blob, deadline_seconds=30)
            offer = ShardOffer(
                blob=blob,
                shard=ShardIndex(0),
                header=header,
                header_bytes=encode_header(header),
                shard_bytes=compute_shard_bytes(header.size_bytes, header.num_data),
                tier=tier,
                epoch=committee.epoch,
                expiry=EXPIRY,
            )
            begun = time.perf_counter()
            outcome = await rebuild_shard(
                engine, links, offer, committee, pacer=Pacer(UNPACED), executor=executor, deadline_seconds=60
            )
            return outcome, time.perf_counter() - begun
    finally:
        await links.close()
        engine.close()


def measure_restore(fleet: Fleet, client: BlobClient, *, epoch: int) -> list[Row]:
    """Bring a checkpoint back from a delta and its base, cold on 24 seats, beside reading it hot and plain."""
    committee = fleet.seat(24, epoch)
    first, second = _make_checkpoints(np.float32)
    whole, delta = io.BytesIO(), io.BytesIO()
    write_archive(io.BytesIO(first), whole, width=4)
    write_archive(io.BytesIO(second), delta, width=4, base=Chain(files=(whole,), blob=b"b" * 32, depth=0))
    kept = [_disperse(client, committee, archive.getvalue(), Tier.COLD) for archive in (whole, delta)]
    plain = _disperse(client, committee, second, Tier.HOT)
    begun = time.perf_counter()
    archives = [io.BytesIO(client.retrieve(b, committee=committee, max_bytes=1 << 30).data) for b in kept]
    target = io.BytesIO()
    read_archive(archives, target)
    cold_seconds = time.perf_counter() - begun
    assert target.getvalue() == second
    begun = time.perf_counter()
    client.retrieve(plain, committee=committee, max_bytes=1 << 30)
    hot_seconds = time.perf_counter() - begun
    return [
        Row(
            name="cold_restore",
            value=len(second) / cold_seconds / 1e9,
            unit="GB/s",
            peer="hot read",
            peer_value=len(second) / hot_seconds / 1e9,
            conditions=f"fp32 checkpoint of {len(second) >> 20} MiB, one delta, 16 of 24, append segments, 4 processes",
        )
    ]


def measure_archives() -> list[Row]:
    """Gain and rate of deltas, beside zstd alone on the same bytes."""
    rows = []
    for kind, width in (("bf16", 2), ("fp32", 4)):
        first, second = _make_checkpoints(np.float32)
        if kind == "bf16":
            first, second = (
                (np.frombuffer(each, np.uint32) >> 16).astype(np.uint16).tobytes() for each in (first, second)
            )
        whole, delta = io.BytesIO(), io.BytesIO()
        write_archive(io.BytesIO(first), whole, width=width)
        begun = time.perf_counter()
        write_archive(io.BytesIO(second), delta, width=width, base=Chain(files=(whole,), blob=b"b" * 32, depth=0))
        seconds = time.perf_counter() - begun
        plain = zstandard.ZstdCompressor(level=1).compress(second)
        rows.append(
            Row(
                name=f"archive_gain_{kind}",
                value=len(second) / len(delta.getvalue()),
                unit="times smaller",
                peer="zstd-1 alone",
                peer_value=len(second) / len(plain),
                conditions=f"{len(second) >> 20} MiB, weights moved by 1e-3 of their size; "
                f"written at {len(second) / seconds / 1e6:.0f} MB/s, one thread",
            )
        )
    return rows


def _disperse(client: BlobClient, committee: Committee, data: bytes, tier: Tier) -> BlobId:
    return client.disperse(
        data, committee=committee, genesis_hash=GENESIS, tier=tier, expiry=EXPIRY, leaf_bytes=65536
    ).terms.blob


def _make_checkpoints(kind: type[np.float32]) -> tuple[bytes, bytes]:
    rng = np.random.default_rng(2)
    weights = rng.standard_normal(BLOB_BYTES // 4).astype(kind)
    moved = weights + kind(1e-3) * weights * rng.standard_normal(BLOB_BYTES // 4).astype(kind)
    return weights.tobytes(), moved.astype(kind).tobytes()


if __name__ == "__main__":
    main()
