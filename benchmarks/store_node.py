"""A real storage node in a process of its own, for benchmarks, over a chain that is a JSON file.

``main()`` with the arguments HOME CHAIN.json [HOST [RAM]]; prints one line of JSON with URL and key when it listens.
The chain file says ``{"genesis": hex, "height": n, "epoch": n, "seats": [{"key": hex, "url": text}],
"codes": [[k, n]]}`` and may appear later.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from da.core.types import BlobId, Committee, Epoch, Height, Seat, ShardIndex
from storage.core.errors import ChainUnreachable
from storage.node.config import NodeConfig
from storage.node.keys import load_or_create_receipt_key
from storage.node.service import run_node

CAPACITY_BYTES = 64 * 2**30
"""More than any benchmark writes."""


class FileChain:
    """The chain as the file says."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def get_genesis_hash(self) -> bytes:
        """See ``ChainPort``."""
        return bytes.fromhex(self._load()["genesis"])

    def get_height(self) -> Height:
        """See ``ChainPort``."""
        return Height(self._load()["height"])

    def get_committees(self) -> tuple[Committee, ...]:
        """See ``ChainPort``."""
        value = self._load()
        seats = tuple(
            Seat(index=ShardIndex(index), key=bytes.fromhex(seat["key"]), url=seat["url"])
            for index, seat in enumerate(value["seats"])
        )
        return (Committee(epoch=Epoch(value["epoch"]), seats=seats),)

    def get_release_heights(self, blobs: Sequence[BlobId]) -> tuple[int, ...]:
        """See ``ChainPort``."""
        return (0,) * len(blobs)

    def get_signed_heights(self, blobs: Sequence[BlobId]) -> tuple[int, ...]:
        """See ``ChainPort``."""
        return (0,) * len(blobs)

    def _load(self) -> dict[str, Any]:
        try:
            value: dict[str, Any] = json.loads(self._path.read_text())
        except FileNotFoundError as error:
            raise ChainUnreachable("no chain yet") from error
        return value


def main() -> None:
    """Run a node until SIGTERM."""
    home, chain = Path(sys.argv[1]), Path(sys.argv[2])
    home.mkdir(parents=True, exist_ok=True)
    key = load_or_create_receipt_key(home / "receipt.key")
    config = NodeConfig(
        home=home,
        host=sys.argv[3] if len(sys.argv) > 3 else "127.0.0.1",
        port=0,
        capacity_bytes=CAPACITY_BYTES,
        extra_codes=((8, 12),),
        ram=Path(sys.argv[4]) if len(sys.argv) > 4 else None,
        ram_bytes=CAPACITY_BYTES,
    )

    def report(url: str) -> None:
        print(json.dumps({"url": url, "key": key.public.hex()}), flush=True)

    asyncio.run(run_node(config, FileChain(chain), key, on_listen=report))
