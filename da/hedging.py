"""When a read stops waiting for a slow seat and asks another one as well (da/SPEC.md, *Client*)."""

from __future__ import annotations

MIN_BYTES_PER_SECOND = 128 * 1024
"""A seat slower than this counts as behind; its deadline grows with the shard at this rate (1 Mbps)."""

PATIENCE_SECONDS = 1.0
"""A seat that is behind for longer gets a substitute while it goes on: about ten round trips between continents."""

HEDGE_SECONDS = 0.25
"""Least time that a seat gets after others were done."""

FIRST_FACTOR = 3
"""When one seat is done, the others get three times as long again."""


def compute_deadline_seconds(least_seconds: float, num_bytes: int) -> float:
    """Return how long a seat may take for ``num_bytes``: what anything may take, and the bytes at the minimum rate."""
    return least_seconds + num_bytes / MIN_BYTES_PER_SECOND


def compute_hedge_time(start: float, first_done: float | None, half_done: float | None, *, num_bytes: int) -> float:
    """Return when seats that are not done get substitutes, in the clock of the arguments (seconds).

    ``first_done`` and ``half_done`` say when one, and half of the k, gave their ``num_bytes``; None: not yet. With half
    of them done, the rest get as long again; with one, three times as long; with none, the minimum rate decides.
    """
    hedge_time = start + PATIENCE_SECONDS + num_bytes / MIN_BYTES_PER_SECOND
    if first_done is not None:
        hedge_time = min(hedge_time, first_done + max(HEDGE_SECONDS, FIRST_FACTOR * (first_done - start)))
    if half_done is not None:
        hedge_time = min(hedge_time, half_done + max(HEDGE_SECONDS, half_done - start))
    return hedge_time
