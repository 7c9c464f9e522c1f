"""Coding and hashing in one process, beside memcpy, ISA-L and BLAKE3 called bare, pyeclib, zfec and reedsolo.

Figures are blob bytes a second of one thread's CPU time; all take turns on the same bytes.
"""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable

import blake3
from pyeclib.ec_iface import ECDriver

from benchmarks.da_goals import describe_goal
from benchmarks.report import Row
from da.codec import ShardHasher, add_folds, decode_blob, encode_blob
from da.core.matrix import compute_parity_rows
from da.core.merkle import BULK_LEAF_BYTES
from da.kernel import get_kernel
from da.memory import BufferPool
from da.words import encode_words

REEDSOLO_COLUMNS = 1000
"""reedsolo codes about 1 MB/s, so it gets so many code words."""

Rates = dict[str, float]
"""GB/s by work."""


def measure_coding(data: bytes, num_data: int, num_parity: int, repeat: int) -> Rates:
    """Return how fast each piece of work goes for a code, ours and the peers'."""
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
        "decode": lambda: decode_blob(encoded.header, last, pool=pool),
        "pyeclib": lambda: driver.encode(data),
        "pyeclib_decode": lambda: driver.decode(fragments[num_parity:]),
    } | _make_zfec_work(pieces, num_data, num_shards)
    rates = measure_rates(works, len(data), repeat)
    words = [bytes(column) for column in zip(*(piece[:REEDSOLO_COLUMNS] for piece in pieces), strict=True)]
    small_bytes = REEDSOLO_COLUMNS * num_data
    rates["reedsolo"] = measure_rates({"": lambda: encode_words(words, num_shards=num_shards)}, small_bytes, 2)[""]
    return rates


def make_rows(rates: Rates, num_bytes: int, num_data: int, num_parity: int, repeat: int) -> list[Row]:
    """Return the rows of a code."""
    num_shards, code = num_data + num_parity, f"{num_data}_{num_parity}"
    harmonic = 1 / (1 / rates["bare"] + 1 / rates["blake3"])
    where = f"{num_bytes / 2**20:g} MiB random, best of {repeat}, a second of CPU time, 1 thread, {get_kernel().name}"
    coded = f"parity into reused buffers; {where}"
    hashed = f"parity and Merkle roots of {num_shards} shards, 64 KiB leaves, reused buffers; {where}"
    folded = f"the same and folds, as a client does; {where}"
    decoded = f"{num_parity} data shards lost at most, coded again and compared; {where}"
    listed = [
        ("encode", "encode", "ISA-L bare", rates["bare"], coded),
        ("encode", "encode", "memcpy", rates["memcpy"], coded),
        ("encode", "encode", "pyeclib's API", rates["pyeclib"], coded),
        *([("encode", "encode", "zfec", rates["zfec"], coded)] if "zfec" in rates else []),
        ("encode", "encode", "reedsolo", rates["reedsolo"], f"{coded}; reedsolo on {REEDSOLO_COLUMNS} words"),
        ("encode_hash", "hash", "harmonic limit of ISA-L and BLAKE3 bare", harmonic, hashed),
        ("fold", "fold", "BLAKE3 bare", rates["blake3"], f"folds of the data shards alone; {where}"),
        ("encode_hash_fold", "all", "memcpy", rates["memcpy"], folded),
        ("decode_check", "decode", "pyeclib, unchecked", rates["pyeclib_decode"], decoded),
    ]
    return [
        make_row(f"{name}_{code}", rates[work], "GB/s", peer, peer_value, conditions)
        for name, work, peer, peer_value, conditions in listed
    ]


def measure_rates(works: dict[str, Callable[[], object]], num_bytes: int, repeat: int) -> Rates:
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


def make_row(
    name: str, value: float, unit: str, peer: str, peer_value: float, conditions: str, *, limit: float = 0.0
) -> Row:
    """Return a row with its goal and the machine's load in the conditions."""
    load = f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}"
    conditions = f"{conditions}; {load}{describe_goal(name, value, limit)}"
    return Row(name=name, value=value, unit=unit, peer=peer, peer_value=peer_value, conditions=conditions)


def _make_zfec_work(pieces: list[memoryview], num_data: int, num_shards: int) -> dict[str, Callable[[], object]]:
    try:
        zfec = importlib.import_module("zfec")
    except ImportError:
        print("zfec is not installed: no row for it (pip install zfec)")
        return {}
    encoder, blocks = zfec.Encoder(num_data, num_shards), [bytes(piece) for piece in pieces]
    return {"zfec": lambda: encoder.encode(blocks, list(range(num_data, num_shards)))}
