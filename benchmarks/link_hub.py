"""The middle of the shaped links: four real storage nodes and the board on which ranks meet, in one namespace.

``main()`` with the arguments FOLDER HOST; prints one line of JSON with the board's port and the seats, and runs until
its standard input is closed.  The board stands for the chain: who has committed which blob.
"""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from pathlib import Path

from torch.distributed import TCPStore

from benchmarks.store_fleet import run_fleet

BOARD_SECONDS = 120.0
"""Longest wait for a key."""

NUM_NODES = 4
"""As a devnet has."""


def main() -> None:
    """Serve until standard input ends."""
    folder, host = Path(sys.argv[1]), sys.argv[2]
    with run_fleet(folder, NUM_NODES, host=host) as fleet:
        committee = fleet.seat(NUM_NODES, 1)
        board = TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=BOARD_SECONDS))
        seats = [{"key": seat.key.hex(), "url": seat.url} for seat in committee.seats]
        print(json.dumps({"port": board.port, "seats": seats}), flush=True)
        sys.stdin.read()
