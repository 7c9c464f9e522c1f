"""Checkpoints that don't prove themselves are passed over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from training.worker.restore import restore_newest
from training.worker.trace import Trace


@pytest.mark.parametrize("harm", ["none", "withheld", "cut", "other state"])
def test_a_checkpoint_that_does_not_prove_itself_is_passed_over(
    net: Any, tmp_path: Path, harm: str, caplog: Any
) -> None:
    net.create_run(minMembers=1, numRounds=8, checkpointInterval=2, roundBlocks=60)
    ann = net.worker("ann").start()
    ann.join()
    assert ann.error is None
    info = net.info()
    memory = net.chain
    newest = memory.read("Training", "checkpointAt", (net.run, info.certified_version))
    blob = newest.blobs[-1]
    if harm == "withheld":
        memory.withheld.add(blob)
    elif harm == "cut":
        memory.blobs[blob] = memory.blobs[blob][:-1]
    elif harm == "other state":
        memory.blobs[blob] = memory.blobs[blob].replace(b"1", b"2")
    trace = Trace(tmp_path / "trace.jsonl")
    with caplog.at_level("WARNING", logger="trainer"):
        state, version = restore_newest(chain=ann.ports, payloads=ann.ports, rules=ann.rules, trace=trace, run=info)
    trace.close()
    assert state.root() == memory.read("Training", "root", (net.run, version))
    if harm == "none":
        assert version == info.certified_version
    else:
        assert version < info.certified_version
        assert f"checkpoint {info.certified_version}" in caplog.text
