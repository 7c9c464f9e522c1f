"""The state: one ordered key-value map behind an overlay with begin, commit and rollback (DESIGN 4).

Everything that is agreed lives in this map, and the app hash commits to every key of it.  Native
contracts, accounts and the round machine see only this class, so the chain, the simulator and the tests
drive the same code.  Invariant: after ``rollback(mark)`` the map equals what it was at ``begin``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from sortedcontainers import SortedDict


class Base(Protocol):
    """Committed state that an overlay stands on."""

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, None where there is none."""

    def iterate(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield (key, value) with start <= key < stop, ascending."""


class EmptyBase:
    """A base without keys, for tests and simulators."""

    def get(self, key: bytes) -> bytes | None:
        """Return None."""
        return None

    def iterate(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield nothing."""
        return iter(())


class Overlay:
    """Pending changes over a base, with one undo journal."""

    __slots__ = ("_base", "_journal", "_pending")

    def __init__(self, base: Base | None = None) -> None:
        """Stand on ``base`` (an empty one by default)."""
        self._base: Base = base if base is not None else EmptyBase()
        self._pending: SortedDict[bytes, bytes | None] = SortedDict()
        self._journal: list[tuple[bytes, bool, bytes | None]] = []

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, None where there is none."""
        if key in self._pending:
            pending: bytes | None = self._pending[key]
            return pending
        return self._base.get(key)

    def set(self, key: bytes, value: bytes) -> None:
        """Set a key; an empty value is allowed and differs from none."""
        self._write(key, value)

    def delete(self, key: bytes) -> None:
        """Remove a key; nothing happens where there is none."""
        if self.get(key) is not None:
            self._write(key, None)

    def iterate(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield (key, value) with start <= key < stop, ascending; the keys are fixed at the call."""
        keys = list(self._pending.irange(start, stop, inclusive=(True, False)))
        shadowed = set(keys)
        merged = [(key, value) for key, value in self._base.iterate(start, stop) if key not in shadowed]
        merged += [(key, value) for key in keys if (value := self._pending[key]) is not None]
        merged.sort()
        return iter(merged)

    def begin(self) -> int:
        """Open a checkpoint and return its mark."""
        return len(self._journal)

    def rollback(self, mark: int) -> None:
        """Undo every change since the mark."""
        while len(self._journal) > mark:
            key, was_pending, value = self._journal.pop()
            if was_pending:
                self._pending[key] = value
            else:
                del self._pending[key]

    def commit(self, mark: int) -> None:
        """Keep the changes since the mark; an outer rollback still undoes them."""

    def changes(self) -> list[tuple[bytes, bytes | None]]:
        """Return what differs from the base, by ascending key; None means deleted."""
        return list(self._pending.items())

    def _write(self, key: bytes, value: bytes | None) -> None:
        was_pending = key in self._pending
        self._journal.append((key, was_pending, self._pending[key] if was_pending else None))
        self._pending[key] = value
