"""What AllReduce would have sent, and what the workers really sent.

AllReduce in a ring sends 2 (D - 1) / D times the gradient for each inner step and worker; the gradient is
bf16, two bytes a parameter.  This is what data parallelism would move for the same steps (TRAINING, *The
model of speed*).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

BF16_BYTES = 2
"""Bytes a parameter of a bf16 gradient."""


def compute_allreduce_bytes(*, num_workers: int, num_parameters: int, num_steps: int) -> int:
    """Return the bytes that one worker sends in ``num_steps`` steps of ring AllReduce in bf16.

    Two workers, 1,000 parameters, 10 steps: 2 * 1/2 * 2 bytes * 1,000 * 10 = 20,000 bytes.  One worker: none.
    """
    return 2 * (num_workers - 1) * BF16_BYTES * num_parameters * num_steps // num_workers


def sum_over_lives(readings: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Add up counters that begin at zero whenever their process begins.

    Readings 5, 9, 2, 3 are two lives, 9 and 3: 12.  A counter that falls begins a new life.
    """
    totals: dict[str, int] = {}
    newest: dict[str, int] = {}
    for reading in readings:
        for name, value in reading.items():
            if value < newest.get(name, 0):
                totals[name] = totals.get(name, 0) + newest[name]
            newest[name] = value
    return {name: totals.get(name, 0) + value for name, value in newest.items()}


def format_bytes(num_bytes: int) -> str:
    """Write a byte count for people, decimal units: 1,234,567 is 1.23 MB."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if num_bytes >= size:
            return f"{num_bytes / size:.3g} {unit}"
    return f"{num_bytes} B"
