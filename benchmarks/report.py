"""Benchmark rows: one shape for every benchmark, written as JSON and shown as a table.

A row is ``{"name", "value", "unit", "peer", "peer_value", "ratio", "conditions"}``; ``ratio`` is value over peer, both
measured in the same invocation. A row with a goal also has ``"goal"`` (text) and ``"is_met"``.
``write_report("da", rows)`` writes ``benchmarks/results/da.json``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent / "results"
"""Where the JSON goes; not in git."""
FILE_COLUMNS = 140
"""Of a table that goes into a file or a pipe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What a figure should reach, in ``unit`` or as a ratio to the peer."""

    least: float | None = None
    """Reached from here on upwards; None where less is better."""
    most: float | None = None
    """Reached from here on downwards; None where more is better."""
    is_ratio: bool = False
    """True where the goal is set for the ratio, False where for the value."""

    def is_met_by(self, row: Row) -> bool:
        """Say whether a row reaches it."""
        got = row.ratio if self.is_ratio else row.value
        return (self.least is None or got >= self.least) and (self.most is None or got <= self.most)

    def __str__(self) -> str:
        """Return such as ``ratio >= 0.35``."""
        parts = (("≥", self.least), ("≤", self.most))
        bounds = " ".join(f"{sign} {bound:,.4g}" for sign, bound in parts if bound is not None)
        return f"ratio {bounds}" if self.is_ratio else bounds


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measurement beside its peer."""

    name: str
    """What was measured, e.g. ``encode_8_4``."""
    value: float
    """Our figure, in ``unit``."""
    unit: str
    """Such as ``GB/s`` or ``tx/s``."""
    peer: str
    """What it is compared with."""
    peer_value: float
    """The peer's figure in the same unit and the same invocation."""
    conditions: str
    """Sizes, threads, repetitions: what a reader needs to repeat it."""
    goal: Goal | None = None
    """What was set out to be reached, if anything was."""

    @property
    def ratio(self) -> float:
        """Our figure over the peer's; 0 where the peer has none."""
        return self.value / self.peer_value if self.peer_value else 0.0


def write_report(name: str, rows: Sequence[Row]) -> Path:
    """Write ``rows`` to ``benchmarks/results/<name>.json``, print them as a table and return the path."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps([_as_dict(row) for row in rows], indent=2) + "\n")
    console = Console() if sys.stdout.isatty() else Console(width=FILE_COLUMNS)
    console.print(_make_table(name, rows))
    for row in rows:
        console.print(f"{row.name} / {row.peer}: {row.conditions}", highlight=False, markup=False, soft_wrap=True)
    return path


def _as_dict(row: Row) -> dict[str, object]:
    goal = {} if row.goal is None else {"goal": str(row.goal), "is_met": row.goal.is_met_by(row)}
    return {
        "name": row.name,
        "value": row.value,
        "unit": row.unit,
        "peer": row.peer,
        "peer_value": row.peer_value,
        "ratio": row.ratio,
        "conditions": row.conditions,
        **goal,
    }


def _make_table(name: str, rows: Sequence[Row]) -> Table:
    table = Table(title=f"benchmark {name}")
    for heading in ("name", "value", "unit", "peer", "peer value", "ratio"):
        is_number = heading in {"value", "peer value", "ratio"}
        table.add_column(heading, justify="right" if is_number else "left", no_wrap=is_number, overflow="fold")
    has_goals = any(row.goal is not None for row in rows)
    if has_goals:
        table.add_column("goal", overflow="fold")
    for row in rows:
        figures = (f"{row.value:,.4g}", row.unit, row.peer, f"{row.peer_value:,.4g}", f"{row.ratio:,.3g}")
        table.add_row(row.name, *figures, *([_describe_goal(row)] if has_goals else []))
    return table


def _describe_goal(row: Row) -> str:
    if row.goal is None:
        return ""
    return f"{row.goal}: {'met' if row.goal.is_met_by(row) else 'not met'}"
