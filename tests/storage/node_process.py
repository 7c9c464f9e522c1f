"""A real storage node in a process of its own, over a chain that is a JSON file.  Run by path, by the tests.

    python node_process.py CONFIG.json

The config names the home, the port, the chain's file, and at which point of which PUT the process ends itself with
SIGKILL.  Everything but the chain is the product's own code.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from da.core.types import BlobId, Committee, Epoch, Height, Seat, ShardIndex, Tier
from storage.core.errors import ChainUnreachable
from storage.core.repair import BlobFacts
from storage.node.keys import load_or_create_receipt_key
from storage.node.service import NodeConfig, run_node
from storage.node.trace import FileTrace


class FileChain:
    """ChainPort over a file that the test rewrites."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def get_genesis_hash(self) -> bytes:
        return bytes.fromhex(self._load()["genesis_hash"])

    def get_height(self) -> Height:
        return Height(self._load()["height"])

    def get_committees(self) -> tuple[Committee, ...]:
        return tuple(
            Committee(
                epoch=Epoch(entry["epoch"]),
                seats=tuple(
                    Seat(index=ShardIndex(index), key=bytes.fromhex(seat["key"]), url=seat["url"])
                    for index, seat in enumerate(entry["seats"])
                ),
            )
            for entry in self._load()["committees"]
        )

    def get_release_heights(self, blobs: Sequence[BlobId]) -> tuple[int, ...]:
        releases = self._load()["releases"]
        return tuple(releases.get(blob.hex(), 0) for blob in blobs)

    def get_signed_heights(self, blobs: Sequence[BlobId]) -> tuple[int, ...]:
        signed = self._load()["signed"]
        return tuple(signed.get(blob.hex(), 0) for blob in blobs)

    def get_committee(self, epoch: Epoch) -> Committee:
        for committee in self.get_committees():
            if committee.epoch == epoch:
                return committee
        return Committee(epoch=epoch, seats=())

    def get_facts(self, blob: BlobId) -> BlobFacts:
        value = self._load()
        tier, epoch, release = value["facts"].get(blob.hex(), (0, 0, 0))
        return BlobFacts(
            blob=blob,
            tier=Tier(tier),
            epoch=Epoch(epoch),
            expiry=Height(release),
            release=Height(release),
            is_live=release > value["height"],
        )

    def _load(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads(self._path.read_text())
        if value["hang_seconds"]:
            self._path.with_suffix(".hanging").touch()
            time.sleep(value["hang_seconds"])
        if value["is_down"]:
            raise ChainUnreachable("the test has taken the chain down")
        return value


class KillAt:
    """Ends the process the n-th time that a point is passed."""

    def __init__(self, point: str, passes: int) -> None:
        self._point = point
        self._passes = passes

    def __call__(self, point: str) -> None:
        if point != self._point:
            return
        self._passes -= 1
        if self._passes <= 0:
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Run the node until SIGTERM."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(levelname)s %(message)s")
    config = json.loads(Path(sys.argv[1]).read_text())
    home = Path(config["home"])
    home.mkdir(parents=True, exist_ok=True)
    key = load_or_create_receipt_key(home / "receipt.key")

    def on_listen(url: str) -> None:
        print(json.dumps({"url": url, "key": key.public.hex()}), flush=True)

    chain = FileChain(Path(config["chain"]))
    asyncio.run(
        run_node(
            NodeConfig(
                home=home,
                host="127.0.0.1",
                port=config["port"],
                capacity_bytes=config["capacity_bytes"],
                poll_seconds=0.05,
                collect_every_blocks=1,
                repair_every_blocks=1,
                audit_every_blocks=1,
                scrub_bytes_per_second=(32 << 20) if config.get("is_keeping") else None,
            ),
            chain,
            key,
            keeping=chain if config.get("is_keeping") else None,
            trace=FileTrace(home / "trace.jsonl"),
            fault=KillAt(config["kill_at"], config["kill_passes"]),
            on_listen=on_listen,
        )
    )


if __name__ == "__main__":
    main()
