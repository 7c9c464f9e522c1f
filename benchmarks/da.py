"""Coding, hashing, dispersal and reading, beside memcpy, pyeclib, zfec and reedsolo, in one invocation.

``python -m benchmarks.da`` prints a table and writes ``benchmarks/results/da.json``. Figures are blob bytes a second,
best of several runs: of CPU time for coding, which one thread does, and of wall time where sockets are. Dispersal goes
to four real storage nodes, each a process of its own, with signed receipts; the RAM rows have their homes on a memory
file system.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import blake3
from pyeclib.ec_iface import ECDriver

from benchmarks.report import Row, write_report
from benchmarks.store_fleet import EXPIRY, GENESIS, Fleet, run_fleet
from da.blocking import BlobClient
from da.codec import ShardHasher, add_folds, decode_blob, encode_blob
from da.committee_file import CommitteeFile, encode_committee
from da.core.matrix import compute_parity_rows
from da.core.merkle import BULK_LEAF_BYTES
from da.core.types import Certificate, Committee, Tier
from da.kernel import get_kernel
from da.memory import BufferPool
from da.words import encode_words

CODES = ((8, 4), (16, 16))
"""(k, m) of the published figures; see DA.md."""

BLOB_BYTES = 64 * 2**20
"""One full stripe."""

REEDSOLO_COLUMNS = 1000
"""reedsolo codes about 1 MB/s, so it gets so many code words."""

LARGE_BYTES = 10**9
"""A blob of 16 stripes, from and to a file."""

LARGE_SECONDS = 600
"""For it, there and back."""

NUM_SMALL_BLOBS = 10_000
SMALL_BLOB_BYTES = 4096

GOALS = {
    "encode_8_4": "0.75 of ISA-L called bare",
    "encode_hash_8_4": "3.5 GB/s a core, or 0.84 of the harmonic limit",
    "disperse_ram_bulk": "1 GB/s on an idle machine",
    "disperse_ram_bulk_2of4": "0.6 GB/s on an idle machine",
    "disperse_ram_http": "0.6 GB/s on an idle machine",
    "disperse_disk_bulk": "0.7 of disperse_ram_bulk",
    "read_verify_bulk": "2 GB/s on an idle machine",
    "small_blobs": "2,000 blobs/s",
    "large_blob_memory": "below 600 MB",
}
"""What was asked for; printed beside the figure."""

RAM_DISK = Path("/dev/shm")
"""Where Linux has a memory file system."""


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=5, help="runs of each; the best counts")
    parser.add_argument("--bytes", type=int, default=BLOB_BYTES, help="size of the blob, a multiple of 16")
    parser.add_argument("--large", type=int, default=LARGE_BYTES, help="bytes of the large blob; 0 leaves it out")
    parser.add_argument("--only", choices=("coding", "network"), default=None, help="leave out the other half")
    options = parser.parse_args()
    data = os.urandom(options.bytes)
    rows: list[Row] = []
    if options.only != "network":
        rows += [
            row for num_data, num_parity in CODES for row in measure_coding(data, num_data, num_parity, options.repeat)
        ]
    if options.only != "coding":
        rows += measure_network(data, options.repeat)
        rows += measure_large(options.large) if options.large else []
    write_report("da", rows)


def measure_coding(data: bytes, num_data: int, num_parity: int, repeat: int) -> list[Row]:
    """Return the rows of one process and no socket for a code."""
    num_shards, piece_bytes = num_data + num_parity, len(data) // num_data
    pieces = [memoryview(data)[i * piece_bytes : (i + 1) * piece_bytes] for i in range(num_data)]
    matrix = compute_parity_rows(num_data, num_shards)
    parity = [memoryview(bytearray(piece_bytes)) for _ in matrix]
    target = memoryview(bytearray(len(data)))
    kernel, pool = get_kernel(), BufferPool()
    driver = ECDriver(k=num_data, m=num_parity, ec_type="isa_l_rs_cauchy")
    bare = kernel.bind(matrix, pieces, parity)
    encoded = encode_blob(data, num_data=num_data, num_shards=num_shards, leaf_bytes=BULK_LEAF_BYTES)
    last = {index: b"".join(encoded.shards[index]) for index in range(num_shards - num_data, num_shards)}
    fragments = driver.encode(data)

    def encode_pooled() -> None:
        coded = encode_blob(data, num_data=num_data, num_shards=num_shards, leaf_bytes=BULK_LEAF_BYTES, pool=pool)
        pool.give_back(*coded.parity)

    def encode_and_hash() -> None:
        hasher = ShardHasher(num_data=num_data, num_shards=num_shards, leaf_bytes=BULK_LEAF_BYTES)
        hasher.update(pieces, parity)
        hasher.finish(size_bytes=len(data))

    works: dict[str, Callable[[], object]] = {
        "memcpy": lambda: target.__setitem__(slice(None), data),
        "bare": lambda: bare(0, piece_bytes),
        "encode": lambda: kernel.multiply(matrix, pieces, parity),
        "blake3": lambda: [blake3.blake3(piece).digest() for piece in (*pieces, *parity)],
        "hash": encode_and_hash,
        "fold": lambda: add_folds(encoded.header, [(piece,) for piece in pieces]),
        "all": encode_pooled,
        "decode": lambda: decode_blob(encoded.header, last),
        "pyeclib": lambda: driver.encode(data),
        "pyeclib_decode": lambda: driver.decode(fragments[num_parity:]),
    } | _make_zfec_work(pieces, num_data, num_shards)
    rates = measure_rates(works, len(data), repeat)
    words = [bytes(column) for column in zip(*(piece[:REEDSOLO_COLUMNS] for piece in pieces), strict=True)]
    small_bytes = REEDSOLO_COLUMNS * num_data
    rates["reedsolo"] = measure_rates({"": lambda: encode_words(words, num_shards=num_shards)}, small_bytes, 2)[""]

    code = f"{num_data}_{num_parity}"
    harmonic = 1 / (1 / rates["bare"] + 1 / rates["blake3"])
    where = f"{len(data) / 2**20:g} MiB random, best of {repeat}, a second of CPU time, 1 thread, {kernel.name}"
    coded = f"parity into reused buffers; {where}"
    hashed = f"parity and Merkle roots of {num_shards} shards, 64 KiB leaves, reused buffers; {where}"
    folded = f"the same and folds, as a client does; {where}"
    decoded = f"{num_parity} data shards lost at most, coded again and compared; {where}"
    listed = [
        ("encode", "encode", "ISA-L bare", rates["bare"], coded),
        ("encode", "encode", "memcpy", rates["memcpy"], coded),
        ("encode", "encode", "pyeclib's API", rates["pyeclib"], coded),
        *([("encode", "encode", "zfec", rates["zfec"], coded)] if "zfec" in rates else []),
        ("encode", "encode", "reedsolo", rates["reedsolo"], f"{coded}; reedsolo on {small_bytes} bytes"),
        ("encode_hash", "hash", "harmonic limit of ISA-L and BLAKE3 bare", harmonic, hashed),
        ("fold", "fold", "BLAKE3 bare", rates["blake3"], f"folds of the data shards alone; {where}"),
        ("encode_hash_fold", "all", "memcpy", rates["memcpy"], folded),
        ("decode_check", "decode", "pyeclib, unchecked", rates["pyeclib_decode"], decoded),
    ]
    return [
        make_row(f"{name}_{code}", rates[work], "GB/s", peer, peer_value, conditions)
        for name, work, peer, peer_value, conditions in listed
    ]


def measure_network(data: bytes, repeat: int) -> list[Row]:
    """Return the rows of a client and four nodes on this machine."""
    rows: list[Row] = []
    limit = _measure_limit(data)
    ram = RAM_DISK if RAM_DISK.is_dir() else None
    if ram is None:
        print("no memory file system: the RAM rows are on disk, without sync")
    with run_fleet(ram) as fleet, BlobClient() as bulk, BlobClient(has_bulk=False) as http:
        wide = fleet.seat(12, 1)
        rows += _measure_client(fleet, wide, bulk, "bulk", data, repeat, limit, num_data=8)
        rows += _measure_client(fleet, wide, http, "http", data, repeat, limit, num_data=8)
        narrow = fleet.seat(4, 2)
        rate, cpu, _ = _disperse_best(fleet, narrow, bulk, data, repeat, Tier.TEMPORARY, None)
        rows.append(_network_row("disperse_ram_bulk_2of4", rate, limit, f"2 of 4, Byzantine; {cpu}"))
        rows.append(_measure_small(fleet, narrow, bulk))
    with run_fleet(None) as fleet, BlobClient() as bulk:
        rate, cpu, _ = _disperse_best(fleet, fleet.seat(12, 1), bulk, data, repeat, Tier.HOT, 8)
        reference = next(row.value for row in rows if row.name == "disperse_ram_bulk")
        rows.append(
            make_row(
                "disperse_disk_bulk",
                rate,
                "GB/s",
                "disperse_ram_bulk",
                reference,
                f"8+4 over 4 nodes, fdatasync before each receipt, under {tempfile.gettempdir()}; {cpu}",
            )
        )
    return rows


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
            timeout=LARGE_SECONDS,
            check=True,
        )
        said = json.loads(done.stdout)
    conditions = f"{num_bytes / 1e9:g} GB from a file to 4 nodes (2 of 4, disk) and back into a file"
    return [
        make_row("large_blob_memory", said["peak_bytes"] / 1e6, "MB RSS", "the blob", num_bytes / 1e6, conditions),
        make_row("large_blob_write", num_bytes / said["write_seconds"] / 1e9, "GB/s", "", 0.0, conditions),
        make_row("large_blob_read", num_bytes / said["read_seconds"] / 1e9, "GB/s", "", 0.0, conditions),
    ]


def measure_rates(works: dict[str, Callable[[], object]], num_bytes: int, repeat: int) -> dict[str, float]:
    """Return the best rate of each work in GB/s of this thread's CPU time.

    They take turns, so that all meet the same machine; CPU time leaves out what other processes took of it.
    """
    best = dict.fromkeys(works, float("inf"))
    for _ in range(repeat):
        for name, work in works.items():
            start = time.thread_time()
            work()
            best[name] = min(best[name], time.thread_time() - start)
    return {name: num_bytes / max(seconds, 1e-9) / 1e9 for name, seconds in best.items()}


def make_row(name: str, value: float, unit: str, peer: str, peer_value: float, conditions: str) -> Row:
    """Return a row with its goal and the machine's load in the conditions."""
    goal = f"; goal: {GOALS[name]}" if name in GOALS else ""
    conditions = f"{conditions}; {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}{goal}"
    return Row(name=name, value=value, unit=unit, peer=peer, peer_value=peer_value, conditions=conditions)


def _measure_client(
    fleet: Fleet,
    committee: Committee,
    client: BlobClient,
    way: str,
    data: bytes,
    repeat: int,
    limit: float,
    *,
    num_data: int,
) -> Iterator[Row]:
    rate, cpu, certificate = _disperse_best(fleet, committee, client, data, repeat, Tier.TEMPORARY, num_data)
    code = f"8+4, 12 seats on 4 nodes, RAM, over {way}"
    yield _network_row(f"disperse_ram_{way}", rate, limit, f"{code}; {cpu}")
    best, blob = float("inf"), certificate.terms.blob
    with _count_cpu(fleet) as cpu_seconds:
        for _ in range(repeat):
            start = time.perf_counter()
            client.retrieve(blob, committee=committee, max_bytes=len(data))
            best = min(best, time.perf_counter() - start)
    cpu = _describe_cpu(cpu_seconds[0], repeat * len(data))
    yield _network_row(f"read_verify_{way}", len(data) / best / 1e9, limit, f"{code}, coded again; {cpu}")


def _disperse_best(
    fleet: Fleet,
    committee: Committee,
    client: BlobClient,
    data: bytes,
    repeat: int,
    tier: Tier,
    num_data: int | None,
) -> tuple[float, str, Certificate]:
    """Return the best rate in GB/s, what it cost in CPU time, and the last certificate."""
    best, fresh = float("inf"), bytearray(data)
    certificate: Certificate | None = None
    with _count_cpu(fleet) as cpu_seconds:
        for _ in range(repeat):
            fresh[:16] = os.urandom(16)  # a blob that no node has yet
            start = time.perf_counter()
            certificate = client.disperse(
                fresh,
                committee=committee,
                genesis_hash=GENESIS,
                tier=tier,
                expiry=EXPIRY,
                leaf_bytes=BULK_LEAF_BYTES,
                num_data=num_data,
            )
            best = min(best, time.perf_counter() - start)
    assert certificate is not None
    return len(data) / best / 1e9, _describe_cpu(cpu_seconds[0], repeat * len(data)), certificate


def _measure_small(fleet: Fleet, committee: Committee, client: BlobClient) -> Row:
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


def _measure_limit(data: bytes) -> float:
    """Return min(encode + hash, loopback) of this machine in GB/s, for 8+4."""
    rates = measure_coding(data, 8, 4, 2)
    coding = next(row.value for row in rates if row.name == "encode_hash_8_4")
    return min(coding, _measure_loopback(data))


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


def _network_row(name: str, rate: float, limit: float, conditions: str) -> Row:
    return make_row(name, rate, "GB/s", "min(encode + hash, loopback)", limit, conditions)


@contextmanager
def _count_cpu(fleet: Fleet) -> Iterator[list[float]]:
    """Give a list whose item is, afterwards, the CPU seconds that this process and the nodes used."""
    spent = [0.0]
    before = time.process_time() + fleet.get_cpu_seconds()
    yield spent
    spent[0] = time.process_time() + fleet.get_cpu_seconds() - before


def _describe_cpu(cpu_seconds: float, num_bytes: int) -> str:
    return f"{cpu_seconds * 1e9 / num_bytes:.2f} CPU-seconds a GB, client and nodes together"


def _make_zfec_work(pieces: list[memoryview], num_data: int, num_shards: int) -> dict[str, Callable[[], object]]:
    try:
        zfec = importlib.import_module("zfec")
    except ImportError:
        print("zfec is not installed: no row for it (pip install zfec)")
        return {}
    encoder, blocks = zfec.Encoder(num_data, num_shards), [bytes(piece) for piece in pieces]
    return {"zfec": lambda: encoder.encode(blocks, list(range(num_data, num_shards)))}


if __name__ == "__main__":
    main()
