"""All of `make bench-training`, one part after the other, and at the end what each took and what failed.

``main()`` runs each part as a process of its own, whose output is shown as it comes, writes
``benchmarks/results/training_wall.json``, and ends with code 1 where a part did, naming it: a peer that cannot be had
or a link that nobody shapes is a failure, not a row that is missing.  ``FULL=1`` does all scenarios, ``RATES=1`` the
inner rates alone.
"""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version

from benchmarks.report import Goal, Row, write_report

QUICK_SECONDS = 900.0
"""The quick run has a quarter of an hour on two cores, all parts together."""

STOP_SECONDS = 30.0
"""For a part to remove what it made, once it is told to end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A module that is run."""

    name: str
    """Row."""
    module: str
    """With a ``main`` of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """How a part went."""

    part: Part
    seconds: float
    """Wall time."""
    code: int
    """Of its exit."""


QUALITY = Part(name="quality_bytes_and_speed", module="benchmarks.training")
PARTS = (
    QUALITY,
    Part(name="shaped_links", module="benchmarks.training_links"),
    Part(name="peer", module="benchmarks.training_peer"),
)
"""In the order they run."""


def is_set(name: str) -> bool:
    """Say whether an environment variable of `make` asks for something."""
    return os.environ.get(name, "") not in ("", "0", "no", "false")


def main() -> None:
    """Run all parts and say how it went."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that the part is told to end
    before = os.getloadavg()[0]
    chosen = (QUALITY,) if is_set("RATES") else PARTS
    finished = [_run(part) for part in chosen]
    kind = "RATES=1" if is_set("RATES") else "FULL=1" if is_set("FULL") else "quick"
    conditions = (
        f"{kind}; {len(os.sched_getaffinity(0))} cores, load {before:.1f} before and {os.getloadavg()[0]:.1f} after;"
        f" Python {platform.python_version()}, torch {version('torch')}, {platform.machine()}"
    )
    write_report("training_wall", make_wall_rows(finished, conditions, is_quick=kind == "quick"))
    sys.exit(describe_failures(finished))


def make_wall_rows(finished: Sequence[Done], conditions: str, *, is_quick: bool) -> list[Row]:
    """Return the wall time of each part, and of all; a part that failed says nothing about the goal."""
    total = sum(done.seconds for done in finished)
    parts = [(f"wall_s_{done.part.name}", done.seconds, None) for done in finished]
    goal = Goal(most=QUICK_SECONDS) if is_quick and not any(done.code for done in finished) else None
    return [
        Row(
            name=name,
            value=seconds,
            unit="s",
            peer="a quarter of an hour",
            peer_value=QUICK_SECONDS,
            conditions=conditions,
            goal=aim,
        )
        for name, seconds, aim in (*parts, ("wall_s_total", total, goal))
    ]


def describe_failures(finished: Sequence[Done]) -> str | None:
    """Return what failed, for `sys.exit`: None, and so code 0, where nothing did."""
    failed = [f"{done.part.name} (`python -m {done.part.module}`, code {done.code})" for done in finished if done.code]
    return f"without figures: {'; '.join(failed)}; why stands above, where each ran" if failed else None


def _run(part: Part) -> Done:
    print(f"== {part.name}: python -m {part.module}", flush=True)
    started = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", part.module])
    try:
        code = process.wait()
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
    return Done(part=part, seconds=time.perf_counter() - started, code=code)
