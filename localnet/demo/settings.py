"""What the demo does and what it expects."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

RUN = 1
"""The first run of a new chain."""
LOSS_GOAL = 2.8
"""Held-out nats a byte that the agreed theta must come under; bytes one by one, without context, are 3.2."""
ROUNDS_GOAL = 24
"""Rounds that must become FINAL."""
OWNER_TOKENS = 10_000
"""What the owner gets from the faucet."""
ESCROW_TOKENS = 1_000
"""What the owner puts into the run."""
REWARD_TOKENS = "0.5"
"""Pay for each counted update; a run that pays has an allow-list."""
CHECKPOINT_ROUNDS = 8
"""Between checkpoints: one has 8 bytes a parameter, as much as some twenty payloads."""
WORKER_TOKENS = 100
"""What each worker gets from the faucet, for fees and bond."""
WORKER_NAMES = ("A", "B")
"""Two workers; below four, attestation survives crashes, not lies."""
DOWN_SECONDS = 2.0
"""How long the killed worker stays away, so that people see it."""
SAME_LOSS = 0.0005
"""Two losses are the same when they agree to three decimals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSettings:
    """Read once from the command line and the environment."""

    home: Path
    """Everything of the demo lies here; removed at its start."""
    data: Path | None = None
    """A person's own text; the standard library's source without it."""
    is_kept: bool = False
    """Leave the devnet up at the end."""
    rpc_port: int = 8545
    """Wish for the JSON-RPC port."""
    is_solo_run: bool = True
    """Train a worker alone for comparison."""
