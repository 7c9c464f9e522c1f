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

from contracts.bindings.types import Challenge, NodeAccount
from da.core.blob import compute_blob_id, decode_header
from da.core.merkle import decode_proof, verify_proof
from da.core.types import BlobId, Committee, Epoch, Height, Seat, ShardIndex, Tier
from storage.core.accusation import AccusationPolicy
from storage.core.errors import ChainUnreachable
from storage.core.repair import BlobFacts
from storage.node.config import NodeConfig
from storage.node.keys import load_or_create_receipt_key
from storage.node.peer_noise import PeerNoise
from storage.node.service import run_node
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
        try:
            value: dict[str, Any] = json.loads(self._path.read_text())
        except OSError as error:  # the node has no descriptor left: over sockets it would be the same
            raise ChainUnreachable(str(error)) from error
        if value["hang_seconds"]:
            self._path.with_suffix(".hanging").touch()
            time.sleep(value["hang_seconds"])
        if value["is_down"]:
            raise ChainUnreachable("the test has taken the chain down")
        return value


class FileChallenges:
    """ChallengePort over a file beside the chain's: a line a challenge, a line an answer that verified."""

    def __init__(self, chain: FileChain, path: Path, key: bytes) -> None:
        self._chain = chain
        self._path = path
        self._key = key

    def get_challenges(self) -> tuple[Challenge, ...]:
        lines = self._read()
        answered = {(line["blob"], line["seat"]) for line in lines if line["event"] == "answered"}
        return tuple(
            Challenge(
                blob=bytes.fromhex(line["blob"]),
                seat=line["seat"],
                leaf=line["leaf"],
                challenger=line["by"],
                operator=self._key.hex(),
                bond=1,
                due_height=line["due"],
            )
            for line in lines
            if line["event"] == "challenged"
            and line["operator"] == self._key.hex()
            and (line["blob"], line["seat"]) not in answered
        )

    def answer(self, challenge: Challenge, *, header: bytes, leaf: bytes, proof: bytes) -> None:
        decoded = decode_header(header)
        assert compute_blob_id(decoded) == challenge.blob
        verify_proof(decoded.shard_roots[challenge.seat], leaf, decode_proof(proof))
        self._write(event="answered", blob=challenge.blob.hex(), seat=challenge.seat, by=self._key.hex())

    def accuse(self, blob: BlobId, shard: ShardIndex, leaf: int) -> Height:
        seats = self._chain.get_committee(self._chain.get_facts(blob).epoch).seats
        due = Height(self._chain.get_height() + 100)
        operator = seats[shard].key.hex()
        self._write(
            event="challenged", blob=blob.hex(), seat=shard, leaf=leaf, by=self._key.hex(), operator=operator, due=due
        )
        return due

    def get_account(self) -> NodeAccount:
        return NodeAccount(
            bond=10**18, earned=0, num_faults=0, num_challenges=len(self.get_challenges()), last_epoch=1, free_height=0
        )

    def _read(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._path.read_text().splitlines()] if self._path.exists() else []

    def _write(self, **line: Any) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")


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
    logging.getLogger("aiohttp.server").addFilter(PeerNoise())
    config = json.loads(Path(sys.argv[1]).read_text())
    home = Path(config["home"])
    home.mkdir(parents=True, exist_ok=True)
    key = load_or_create_receipt_key(home / "receipt.key")

    def on_listen(url: str) -> None:
        print(json.dumps({"url": url, "key": key.public.hex()}), flush=True)

    chain = FileChain(Path(config["chain"]))
    challenges = FileChallenges(chain, Path(config["chain"]).with_suffix(".challenges"), key.public)
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
                body_timeout_seconds=config.get("body_timeout_seconds", 30.0),
                accusations=AccusationPolicy(strikes=3, min_blocks=2, every_blocks=5),
            ),
            chain,
            key,
            keeping=chain if config.get("is_keeping") else None,
            challenges=challenges if config.get("has_challenges") else None,
            trace=FileTrace(home / "trace.jsonl"),
            fault=KillAt(config["kill_at"], config["kill_passes"]),
            on_listen=on_listen,
        )
    )


if __name__ == "__main__":
    main()
