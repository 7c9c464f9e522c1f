"""Seconds, as people give them, into blocks, as the chain counts them (DESIGN 4.1).

A timer shorter than two rotations of the proposers could end before a slow or dead proposer's turn is over,
so no timer is shorter than that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from contracts.bindings.client import ChainClient
from contracts.bindings.encoding import read_quantity

SAMPLE_BLOCKS = 60
"""Blocks that are looked at: about 20 s of a devnet, and more than one rotation of 50 validators."""

DEVNET_BLOCK_SECONDS = 0.3
"""Taken for a chain too young to be measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockPace:
    """How fast a chain makes blocks."""

    block_seconds: float
    """Mean time between blocks."""
    num_proposers: int
    """Different proposers among the newest blocks, at least 1."""

    def compute_blocks(self, seconds: float) -> int:
        """Return the blocks that cover ``seconds``: rounded up, at least two rotations of the proposers."""
        return max(math.ceil(seconds / self.block_seconds - 1e-9), 2 * self.num_proposers, 2)


def describe_wait(pace: BlockPace, num_blocks: int) -> str:
    """Write blocks to come as a time, for people: 200 blocks of 0.3 s are `in about 60 s`."""
    if num_blocks <= 0:
        return "now"
    seconds = num_blocks * pace.block_seconds
    return f"in about {seconds:.0f} s" if seconds < 300 else f"in about {seconds / 60:.0f} minutes"


def measure_pace(chain: ChainClient, *, block_seconds: float | None = None) -> BlockPace:
    """Measure a chain's pace over its newest blocks; ``block_seconds`` overrides the time."""
    head = chain.height()
    first = max(1, head - SAMPLE_BLOCKS + 1)
    proposers, times = chain.interpret(
        [("eth_getBlockByNumber", (hex(height), False)) for height in range(first, head + 1)],
        lambda blocks: (
            {str(block["miner"]) for block in blocks if block},
            [read_quantity(block["timestamp"]) for block in blocks if block],
        ),
    )
    if block_seconds is None:
        # Whole-second time stamps: below ten seconds of history their rounding would decide.
        span = times[-1] - times[0] if times else 0
        block_seconds = span / (len(times) - 1) if span >= 10 else DEVNET_BLOCK_SECONDS
    return BlockPace(block_seconds=block_seconds, num_proposers=max(1, len(proposers)))
