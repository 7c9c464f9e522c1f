"""Memory does not grow with the blob: two stripes to four real nodes and back."""

from __future__ import annotations

import filecmp
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from da.committee_file import CommitteeFile, encode_committee

pytestmark = pytest.mark.integration

FILE_BYTES = 100 * 2**20
"""Two stripes. In memory at once, the file and its parity alone would be 200 MiB."""

GROWTH_BYTES = 130 * 2**20
"""What a transfer may take beside Python and its libraries: four slabs of 16 MiB, one being read, sockets."""

SECONDS = 100


def test_a_large_file_takes_little_memory(fleet: Any, tmp_path: Path) -> None:
    nodes = fleet.start_all([f"node-{index}" for index in range(4)], capacity=1 << 30)
    target = CommitteeFile(committee=fleet.seat(nodes), genesis_hash=bytes.fromhex(fleet.chain["genesis_hash"]))
    (tmp_path / "committee.json").write_text(encode_committee(target))
    source, out = tmp_path / "in", tmp_path / "out"
    block = bytes(range(256)) * 4096
    with source.open("wb") as file:
        for index in range(FILE_BYTES // len(block)):
            file.write(index.to_bytes(4, "big") + block[4:])
    script = Path(__file__).with_name("large_transfer.py")
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "committee.json"), str(source), str(out)],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["faults"] == []
    assert said["sent"] > 2 * FILE_BYTES
    assert max(said["grown"].values()) < GROWTH_BYTES, said
    assert filecmp.cmp(source, out, shallow=False)
