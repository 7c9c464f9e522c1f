"""A list of children that live and end together: started by stage, stopped stage by stage, the last first.

The supervisor also adopts orphans (PR_SET_CHILD_SUBREAPER): if one of its children is killed, what that
child had started comes to us, so `stop` finds and ends it.  A stop takes at most ten seconds.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Mapping, Sequence
from enum import IntEnum
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from localnet.process import Child, end_processes, start_child, stop_children

PR_SET_CHILD_SUBREAPER = 36
"""prctl(2): orphaned descendants become children of this process."""
STOP_SECONDS = 8.0
"""For all stages together, before what is left is killed."""
LEAST_SECONDS = 0.5
"""Each stage gets at least this, however long the ones before it took."""


class Stage(IntEnum):
    """Who needs whom: a higher stage stands on the lower ones and is stopped first."""

    CHAIN = 0
    STORAGE = 1
    WORK = 2


class Supervisor:
    """Starts children and, on leaving the `with`, stops all that are left."""

    def __init__(
        self, *, logs: Path, environment: Mapping[str, str] | None = None, adopts_orphans: bool = False
    ) -> None:
        """Keep one log a child in ``logs``; ``adopts_orphans`` is for a process that has no other children."""
        self.logs = logs
        self._children: list[tuple[Stage, Child]] = []
        self._environment = environment
        self._adopts_orphans = adopts_orphans
        if adopts_orphans and sys.platform == "linux":
            ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    @property
    def children(self) -> tuple[Child, ...]:
        """All children that are watched, in the order in which they were started."""
        return tuple(child for _, child in self._children)

    def start(
        self,
        name: str,
        command: Sequence[str],
        *,
        stage: Stage,
        nice: int = 0,
        output: Path | None = None,
        is_leashed: bool = True,
    ) -> Child:
        """Start a process (see `start_child`) and watch over it from now on."""
        log = self.logs / f"{name}.log"
        child = start_child(
            name, command, log=log, environment=self._environment, nice=nice, output=output, is_leashed=is_leashed
        )
        self._children.append((stage, child))
        return child

    def release(self, child: Child) -> None:
        """Forget a child that has ended as it should."""
        self._children = [(stage, other) for stage, other in self._children if other is not child]

    def stop_one(self, child: Child) -> None:
        """Stop one child and all that it started, and forget it."""
        stop_children([child])
        self.release(child)

    def check(self) -> None:
        """Raise ChildExited for the first child that has ended."""
        for child in self.children:
            child.check()

    def stop(self) -> None:
        """Stop all children, the highest stage first, and every orphan that came to us."""
        end = time.monotonic() + STOP_SECONDS
        for stage in sorted({stage for stage, _ in self._children}, reverse=True):
            members = [child for of, child in self._children if of is stage]
            stop_children(members, term_seconds=max(end - time.monotonic(), LEAST_SECONDS))
            self._children = [(of, child) for of, child in self._children if of is not stage]
        if self._adopts_orphans:
            end_processes(psutil.Process(os.getpid()).children(recursive=True))

    def __enter__(self) -> Self:
        """Watch over children."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop what is left."""
        self.stop()
