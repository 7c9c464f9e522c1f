"""Erasure coding and hashing at (8,4), beside memcpy, pyeclib's own API and reedsolo, in one invocation.

``python -m benchmarks.da`` prints a table and writes ``benchmarks/results/da.json``. The figure is blob bytes a second,
best of several runs; ``encode_8_4`` reuses its output buffers, the others allocate as the client does.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import blake3
from pyeclib.ec_iface import ECDriver
from reedsolo import RSCodec

from benchmarks.report import Row, write_report
from da.codec import EncodedBlob, decode_blob, encode_blob
from da.core.matrix import compute_parity_rows
from da.core.merkle import BULK_LEAF_BYTES
from da.kernel import get_kernel

NUM_DATA, NUM_PARITY = 8, 4
"""The code of the published figures; see DA.md."""

BLOB_BYTES = 64 * 2**20
"""One full stripe."""

REEDSOLO_BYTES = NUM_DATA * 2000
"""reedsolo codes about 1 MB/s, so it gets less to do."""


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=7, help="runs of each; the best counts")
    parser.add_argument("--bytes", type=int, default=BLOB_BYTES, help="size of the blob, a multiple of 8")
    options = parser.parse_args()
    write_report("da", measure(os.urandom(options.bytes), options.repeat))


def measure(data: bytes, repeat: int) -> list[Row]:
    """Return all rows for ``data``."""
    piece_bytes = len(data) // NUM_DATA
    pieces = [memoryview(data)[i * piece_bytes : (i + 1) * piece_bytes] for i in range(NUM_DATA)]
    rows = compute_parity_rows(NUM_DATA, NUM_DATA + NUM_PARITY)
    parity = [bytearray(piece_bytes) for _ in rows]
    target = memoryview(bytearray(len(data)))
    kernel = get_kernel()
    driver = ECDriver(k=NUM_DATA, m=NUM_PARITY, ec_type="isa_l_rs_cauchy")
    codec = RSCodec(NUM_PARITY, nsize=NUM_DATA + NUM_PARITY, fcr=0)
    encoded = encode(data)
    lost_data = {index: b"".join(encoded.shards[index]) for index in range(NUM_PARITY, NUM_DATA + NUM_PARITY)}
    fragments = driver.encode(data)

    with ThreadPoolExecutor(2) as pool:
        rates = measure_rates(
            {
                "memcpy": lambda: target.__setitem__(slice(None), data),
                "pyeclib": lambda: driver.encode(data),
                "pyeclib_hash": lambda: [blake3.blake3(part).digest() for part in driver.encode(data)],
                "pyeclib_decode": lambda: driver.decode(fragments[NUM_PARITY:]),
                "encode": lambda: kernel.multiply(rows, pieces, parity),
                "hash": lambda: encode(data),
                "hash_2t": lambda: encode(data, pool),
                "decode": lambda: decode_blob(encoded.header, lost_data),
            },
            len(data),
            repeat,
        )
    small = data[:REEDSOLO_BYTES]
    reedsolo = measure_rates({"reedsolo": lambda: codec.encode(small)}, len(small), repeat)["reedsolo"]

    where = f"{len(data) / 2**20:g} MiB random, best of {repeat}, {kernel.name}"
    coded = f"parity into reused buffers, 1 thread; {where}"
    hashed = f"parity + Merkle roots of 12 shards, 64 KiB leaves, new buffers, 1 thread; {where}"
    decoded = f"4 of 8 data shards lost, re-encoded and compared, 1 thread; {where}"
    results = [
        ("encode_8_4", "encode", "memcpy", rates["memcpy"], coded),
        ("encode_8_4", "encode", "pyeclib isa_l_rs_cauchy", rates["pyeclib"], coded),
        ("encode_8_4", "encode", "reedsolo", reedsolo, f"{coded}; reedsolo on {len(small)} bytes"),
        ("encode_hash_8_4", "hash", "memcpy", rates["memcpy"], hashed),
        ("encode_hash_8_4", "hash", "pyeclib + blake3", rates["pyeclib_hash"], hashed),
        ("encode_hash_8_4_2t", "hash_2t", "pyeclib + blake3", rates["pyeclib_hash"], f"{hashed}; ours hashes on 2"),
        ("decode_check_8_4", "decode", "pyeclib, unchecked", rates["pyeclib_decode"], decoded),
    ]
    return [
        Row(name=name, value=rates[work], unit="GB/s", peer=peer, peer_value=peer_value, conditions=conditions)
        for name, work, peer, peer_value, conditions in results
    ]


def encode(data: bytes, pool: ThreadPoolExecutor | None = None) -> EncodedBlob:
    """Encode and hash as the client does."""
    return encode_blob(
        data, num_data=NUM_DATA, num_shards=NUM_DATA + NUM_PARITY, leaf_bytes=BULK_LEAF_BYTES, executor=pool
    )


def measure_rates(works: dict[str, Callable[[], object]], num_bytes: int, repeat: int) -> dict[str, float]:
    """Return the best rate of each work in GB/s; they take turns, so that all meet the same machine."""
    best = dict.fromkeys(works, float("inf"))
    for _ in range(repeat):
        for name, work in works.items():
            start = time.perf_counter()
            work()
            best[name] = min(best[name], time.perf_counter() - start)
    return {name: num_bytes / seconds / 1e9 for name, seconds in best.items()}


if __name__ == "__main__":
    main()
