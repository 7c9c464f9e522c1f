"""Disperses and reads a large file in a process of its own, and says how much memory that took.  Run by path.

python large_transfer.py COMMITTEE.json FILE OUT
"""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path

from da.blocking import BlobClient
from da.committee_file import decode_committee
from da.core.types import Height, Tier
from da.kernel import get_kernel
from da.slabs import FileSource


def get_peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    target = decode_committee(Path(sys.argv[1]).read_text())
    get_kernel()
    before = get_peak_bytes()
    with FileSource(Path(sys.argv[2])) as source, BlobClient(deadline_seconds=60) as client:
        dispersal = client.disperse_stream(
            source,
            committee=target.committee,
            genesis_hash=target.genesis_hash,
            tier=Tier.TEMPORARY,
            expiry=Height(1000),
        )
        after_write = get_peak_bytes()
        client.retrieve_to_file(
            dispersal.certificate.terms.blob,
            Path(sys.argv[3]),
            committee=target.committee,
            max_bytes=source.size_bytes,
        )
        faults = [str(fault) for fault in dispersal.faults]
    grown = {"write": after_write - before, "all": get_peak_bytes() - before}
    print(json.dumps({"faults": faults, "grown": grown, "sent": client.bytes_sent}))


if __name__ == "__main__":
    main()
