"""How fast this machine is now: a few inner steps before the run is created, so that its limits fit.

A round limit made for an idle machine would drop both workers of a busy one, and the demo would show only that.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from localnet.core.snapshot import Snapshot

EXPECTED_STEP_SECONDS = 0.07
"""One inner step of the demo's recipe with one thread on an idle core: measured, 57 to 67 ms."""
WARM_UP_STEPS = 2
"""The first ones load kernels."""
MEASURED_STEPS = 8
"""Enough for a mean, and done in half a second on an idle core."""
ROUND_SECONDS = 36.0
"""Longest that a round stays open, on a machine as fast as expected; the default of `trainer run create`."""
ATTEST_SECONDS = 9.0
"""Likewise for one attempt at a vote."""
SLOW_FACTOR = 1.5
"""From here on the demo says that the machine is slower than expected."""
MOST_SLOWNESS = 6.0
"""Limits grow no further than this: a demo that takes half an hour shows nothing."""
MEMBER = b"pace".ljust(20, b"\0")
"""Whose samples: an address that nobody has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """What was measured."""

    step_seconds: float
    """One inner step, wall clock."""
    load: float
    """Processes that wanted to run during the last minute, as the kernel counts them."""
    num_cores: int
    """Of this machine."""

    @property
    def slowness(self) -> float:
        """By how much limits are stretched, 1..MOST_SLOWNESS."""
        return min(max(self.step_seconds / EXPECTED_STEP_SECONDS, 1.0), MOST_SLOWNESS)

    @property
    def round_seconds(self) -> float:
        """Longest that a round stays open."""
        return ROUND_SECONDS * self.slowness

    @property
    def attest_seconds(self) -> float:
        """Longest that one attempt at a vote takes."""
        return ATTEST_SECONDS * self.slowness

    def describe_slowness(self) -> str | None:
        """Say that the machine is slow and what was done about it; None when it is not."""
        if self.slowness < SLOW_FACTOR:
            return None
        return (
            f"this machine is slower than the demo expects: load {self.load:.1f} on {self.num_cores} cores, an inner "
            f"step takes {1000 * self.step_seconds:.0f} ms instead of {1000 * EXPECTED_STEP_SECONDS:.0f}; a round may "
            f"take {self.round_seconds:.0f} s instead of {ROUND_SECONDS:.0f}"
        )


def get_load() -> tuple[float, int]:
    """Return (load of the last minute, cores that this process may use)."""
    return os.getloadavg()[0], len(os.sched_getaffinity(0))


def measure_pace(recipe_text: str, corpus: object) -> tuple[Pace, int]:
    """Train a few inner steps of the recipe here with one thread; return the pace and the number of parameters."""
    import torch

    from localnet.demo.solo import count_parameters
    from training.core.canonical import create_genesis
    from training.core.recipe_text import parse_recipe
    from training.local import LocalWorker

    recipe = parse_recipe(recipe_text)
    genesis = create_genesis(recipe)
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    times: list[float] = []
    worker = LocalWorker(recipe, genesis, 0, MEMBER, corpus=corpus)  # type: ignore[arg-type]
    worker.train(
        0,
        WARM_UP_STEPS + MEASURED_STEPS,
        participants=(MEMBER,),
        on_step=lambda _index, _loss: times.append(time.monotonic()),
    )
    torch.set_num_threads(num_threads)
    load, num_cores = get_load()
    seconds = (times[-1] - times[WARM_UP_STEPS - 1]) / MEASURED_STEPS
    return Pace(step_seconds=seconds, load=load, num_cores=num_cores), count_parameters(genesis)


class TroubleSpotter:
    """Says once what a busy machine does to a run: a round without everybody, a member that was dropped."""

    def __init__(self) -> None:
        """Nothing was said yet."""
        self._has_warned = False
        self._dropped: set[str] = set()

    def look(self, snapshot: Snapshot, *, away: str = "") -> list[str]:
        """Return what is new to say; ``away`` is the worker that is missing on purpose."""
        lines = []
        late = [row for row in snapshot.workers if row.num_missed > 0 and row.name != away]
        if late and not self._has_warned:
            self._has_warned = True
            load, num_cores = get_load()
            lines.append(
                f"worker {late[0].name} was late for a round: this machine is slower than the demo expects, load "
                f"{load:.1f} on {num_cores} cores"
            )
        for row in snapshot.workers:
            if row.state != "DROPPED":
                self._dropped.discard(row.name)
            elif row.name not in self._dropped:
                self._dropped.add(row.name)
                lines.append(
                    f"worker {row.name} missed {row.num_missed} rounds in a row and was dropped; it may rejoin from "
                    f"block {row.rejoin_height} (now {snapshot.height}), and will by itself"
                )
        return lines
