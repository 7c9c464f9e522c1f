"""README's section *Operate*, pasted as printed on a devnet of its own; only ports and pauses are others here."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from chain.ports import find_free_ports

pytestmark = [pytest.mark.integration, pytest.mark.soak, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_SECONDS = 240.0
PAUSES = {
    "STORE": "sleep 12",
    "NODE": "for _ in $(seq 60); do chain-node status --home node | grep -q 'up  False' && break; sleep 1; done",
}
"""In place of the 30 seconds after a process began: of a store nothing is looked at that comes later, a node of a busy
machine may need more."""


def read_blocks() -> list[str]:
    section = (ROOT / "README.md").read_text(encoding="utf-8").partition("\n## Operate\n")[2].partition("\n## ")[0]
    return re.findall(r"```\n(.*?)```", section, re.DOTALL)


@pytest.fixture
def paste(tmp_path: Path) -> Iterator[list[str]]:
    """The blocks, for the ports of a devnet that is up in the working directory."""
    localnet = [sys.executable, "-m", "localnet.cli"]
    up = [*localnet, "up", "--detach", "--json"]
    done = subprocess.run(up, cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=True)
    url = json.loads(done.stdout)["rpc_urls"][0]
    core = json.loads((tmp_path / ".cache/devnet/validator-0/run.json").read_text())["cometbft_url"]
    store, rpc = find_free_ports(2)
    ports = {"http://127.0.0.1:8545": url, "http://127.0.0.1:26657": core, ":9200": f":{store}", ":8645": f":{rpc}"}
    blocks = read_blocks()
    for shown, own in ports.items():
        assert any(shown in block for block in blocks), shown
        blocks = [block.replace(shown, own) for block in blocks]
    for process, pause in PAUSES.items():
        shown = f"{process}=$!; sleep 30"
        assert any(shown in block for block in blocks), shown
        blocks = [block.replace(shown, f"{process}=$!; {pause}") for block in blocks]
    yield blocks
    subprocess.run([*localnet, "down", "--quiet"], cwd=tmp_path, timeout=DEADLINE_SECONDS, check=True)


def test_operate_works_as_printed(paste: list[str], tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    outputs = []
    for block in paste:
        script = "set -e -o pipefail\n" + block
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=tmp_path,
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            timeout=DEADLINE_SECONDS,
            check=False,
        )
        logs = [log.read_text()[-2000:] for log in tmp_path.glob("*.log")]
        assert done.returncode == 0, (done.stdout + done.stderr, logs)
        outputs.append(done.stdout)
    store, node = outputs
    assert "registration  registered" in store
    assert "nothing to do" in store, "doctor"
    assert "draining: 0 shards kept, 0 B\nbond: 1 token; free: " in store
    assert "next: it keeps no shard, so the node may stop" in store
    assert re.search(r"catching up  False", node)
    assert "is a validator since block" in node
    assert "verified by header" in node
    assert "leaves the set" in node
