"""What workers of several processes share behind the surface of `LocalWorker`: started, restored and ended together.

A kind of group says which processes there are (`_open`) and what they begin with (`_begin`).  Invariant: no process
outlives a worker that could not be made.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Self

import torch

from training.core.canonical import CanonicalState
from training.core.recipe import Recipe
from training.data.corpus import Corpus, check_size
from training.group.processes import GroupProcesses
from training.group.shape import GroupConfig, check_shape
from training.local import LocalWorker


class GroupWorker(LocalWorker):
    """One worker over several processes."""

    _processes: GroupProcesses

    def __init__(
        self,
        recipe: Recipe,
        canonical: CanonicalState,
        version: int,
        member: bytes,
        device: str | torch.device = "cpu",
        *,
        corpus: Corpus,
        group: GroupConfig,
        on_end: Callable[[], None] | None = None,
    ) -> None:
        """Start the processes at ``version`` of the agreed state; on CUDA, each takes a device of its own in a row.

        ``on_end`` hears when one ends unasked or is told to stop.  Raises `CorpusTooSmallError`,
        `StageCountError`, `ShardCountError`, `RecipeValueError` or `DeviceCountError`, before any process is started.
        """
        check_size(corpus, recipe.model.context)
        check_shape(recipe, group)
        self._open(recipe, member, torch.device(device), group, on_end)
        try:
            self._begin(recipe, canonical, version, member, corpus)
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> tuple[int, ...]:
        """Return the ids of the processes."""
        return self._processes.pids

    def close(self) -> None:
        """End the processes; idempotent."""
        self._processes.close()

    def check(self) -> None:
        """Raise `GroupEndedError` where a process has ended unasked."""
        self._processes.check()

    @classmethod
    def load(  # type: ignore[override]
        cls,
        path: Path,
        recipe: Recipe,
        member: bytes,
        device: str | torch.device = "cpu",
        *,
        corpus: Corpus,
        group: GroupConfig,
        on_end: Callable[[], None] | None = None,
    ) -> Self:
        """Restore what any shape of worker saved; see `LocalWorker.load`."""
        canonical, version, tensors, about = cls.read_saved(path, recipe, member)
        worker = cls(recipe, canonical, version, member, device, corpus=corpus, group=group, on_end=on_end)
        try:
            worker._restore(tensors, about)
        except BaseException:
            worker.close()
            raise
        return worker

    @abstractmethod
    def _open(
        self,
        recipe: Recipe,
        member: bytes,
        device: torch.device,
        group: GroupConfig,
        on_end: Callable[[], None] | None,
    ) -> None:
        """Start the processes; nothing is left of them where that fails."""

    @abstractmethod
    def _begin(self, recipe: Recipe, canonical: CanonicalState, version: int, member: bytes, corpus: Corpus) -> None:
        """Give them what they begin with, and be a `LocalWorker`."""
