"""The trees of the newest blocks, so that a proof can be had of a block that somebody has just read.

A tree shares with the next one all that the block between them left alone, so an old one costs what was changed since:
some 2 kB a key.  The newest is always there; no part of what is agreed.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from chain.core.smt import Tree

MAX_TREES = 128
"""As many blocks back as the state can be read (``chain.store``)."""
MAX_CHANGES = 10_000
"""Keys that the kept blocks changed together, some 20 MB: four blocks of 2,500 transfers, all 128 of a calm chain."""


@dataclass(frozen=True, slots=True)
class _Kept:
    height: int
    tree: Tree
    num_changes: int


class RecentTrees:
    """Trees by height, without a gap."""

    __slots__ = ("_kept", "_num_changes")

    def __init__(self) -> None:
        """Hold none."""
        self._kept: deque[_Kept] = deque()
        self._num_changes = 0

    @property
    def first_height(self) -> int | None:
        """The oldest block whose tree is here, None while there is none: before genesis, or amid a state sync."""
        return self._kept[0].height if self._kept else None

    def add(self, height: int, tree: Tree, num_changes: int) -> None:
        """Take in the tree after a block that changed so many keys."""
        self._kept.append(_Kept(height, tree, num_changes))
        self._num_changes += num_changes
        while len(self._kept) > MAX_TREES or (self._num_changes > MAX_CHANGES and len(self._kept) > 1):
            self._num_changes -= self._kept.popleft().num_changes

    def get(self, height: int) -> Tree | None:
        """Return the tree after a block, None where it is not here."""
        index = height - self._kept[0].height if self._kept else -1
        return self._kept[index].tree if 0 <= index < len(self._kept) else None

    def clear(self) -> None:
        """Hold none."""
        self._kept.clear()
        self._num_changes = 0
