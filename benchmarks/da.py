"""Coding, hashing, dispersal and reading, beside memcpy, pyeclib, zfec and reedsolo, in one invocation.

``python -m benchmarks.da`` prints a table and writes ``benchmarks/results/da.json``. Figures are blob bytes a second,
best of several runs: of CPU time for coding, which one thread does, and of wall time where sockets are. Dispersal goes
to four real storage nodes, each a process of its own, with signed receipts; the RAM rows have their homes on a memory
file system, of huge pages where one may be mounted (``unshare``), beside one of small pages. ``--full`` takes a large
blob of 10 GB, which needs 45 GB of disk.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
from pathlib import Path

from benchmarks.da_coding import make_rows, measure_coding
from benchmarks.da_network import measure_large, measure_network
from benchmarks.report import Row, write_report
from benchmarks.storage import BLOB_BYTES as KEPT_BYTES
from benchmarks.storage import measure_repair, measure_restore
from benchmarks.store_fleet import run_fleet
from da.blocking import BlobClient
from da.core.types import Tier

CODES = ((8, 4), (16, 16))
"""(k, m) of the published figures; see DA.md."""

BLOB_BYTES = 64 * 2**20
"""One full stripe."""

LARGE_BYTES = 10**9
"""A blob of 16 stripes, from and to a file."""

FULL_LARGE_BYTES = 10**10
"""What was asked for: ten times as much in the same memory."""


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=5, help="runs of each; the best counts")
    parser.add_argument("--bytes", type=int, default=BLOB_BYTES, help="size of the blob, a multiple of 16")
    parser.add_argument("--large", type=int, default=LARGE_BYTES, help="bytes of the large blob; 0 leaves it out")
    parser.add_argument("--full", action="store_true", help=f"a large blob of {FULL_LARGE_BYTES} bytes")
    parser.add_argument("--only", choices=("coding", "network", "keeping"), default=None, help="leave out the rest")
    options = parser.parse_args()
    data = os.urandom(options.bytes)
    large_bytes = FULL_LARGE_BYTES if options.full else options.large
    rows: list[Row] = []
    if options.only in (None, "coding"):
        for num_data, num_parity in CODES:
            rates = measure_coding(data, num_data, num_parity, options.repeat)
            rows += make_rows(rates, len(data), num_data, num_parity, options.repeat)
    if options.only in (None, "network"):
        rows += measure_network(data, measure_coding(data, *CODES[0], 3), options.repeat)
        rows += measure_large(large_bytes) if large_bytes else []
    if options.only in (None, "keeping"):
        rows += measure_keeping()
    write_report("da", rows)


def measure_keeping() -> list[Row]:
    """Return what a lost shard costs and how fast a cold checkpoint comes back; benchmarks/storage.py has more."""
    with (
        tempfile.TemporaryDirectory(prefix="archipelago-bench-") as directory,
        run_fleet(None) as fleet,
        BlobClient(deadline_seconds=60) as client,
    ):
        data = random.Random(1).randbytes(KEPT_BYTES)
        repaired = measure_repair(fleet, client, Path(directory), data, 1, 4, Tier.HOT)
        return [*repaired, *measure_restore(fleet, client, epoch=2)]


if __name__ == "__main__":
    main()
