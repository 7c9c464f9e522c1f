"""One large blob, from file to nodes and back to a file, in a process of its own, so that its memory can be seen.

``main()`` with the arguments COMMITTEE.json FILE OUT; prints one line of JSON.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from benchmarks.store_fleet import EXPIRY
from da.blocking import BlobClient
from da.committee_file import decode_committee
from da.core.types import Tier
from da.slabs import FileSource


def main() -> None:
    """Write, read, and say what it took."""
    committee_path, path, out = map(Path, sys.argv[1:4])
    target = decode_committee(committee_path.read_text())
    with FileSource(path) as source, BlobClient(deadline_seconds=120) as client:
        start = time.perf_counter()
        dispersal = client.disperse_stream(
            source,
            committee=target.committee,
            genesis_hash=target.genesis_hash,
            tier=Tier.HOT,
            expiry=EXPIRY,
        )
        middle = time.perf_counter()
        client.retrieve_to_file(
            dispersal.certificate.terms.blob, out, committee=target.committee, max_bytes=source.size_bytes
        )
        end = time.perf_counter()
    said = {
        "write_seconds": middle - start,
        "read_seconds": end - middle,
        "peak_bytes": _read_peak_bytes(),
        "faults": [str(fault) for fault in dispersal.faults],
    }
    print(json.dumps(said), flush=True)


def _read_peak_bytes() -> int:
    """Return the most memory that this program has held; ``getrusage`` would count what its parent held before."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
