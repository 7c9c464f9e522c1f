"""Timers of all runs, found by an index on due height; bounded work a block."""

from __future__ import annotations

from chain.core.turn import Turn


def process_rounds_block_end(turn: Turn) -> None:
    """Move every run that is due; none exists yet."""
