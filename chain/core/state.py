"""The state: one ordered key-value map behind an overlay with begin, commit and rollback (DESIGN 4).

Everything that is agreed lives in this map, and the app hash commits to every key of it.  Native
contracts, accounts and the round machine see only this class, so the chain, the simulator and the tests
drive the same code.  Invariant: after ``rollback(mark)`` the map equals what it was at ``begin``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from sortedcontainers import SortedSet


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


_ABSENT = object()
"""In the journal: the key wasn't pending."""


class Overlay:
    """Pending changes over a base, with one undo journal.

    Writing and reading take a dict; the keys are sorted only when somebody iterates, those that came since.  What was
    read of the base is remembered: the base stays as it is while an overlay stands on it.
    """

    __slots__ = ("_base", "_journal", "_known", "_new_keys", "_pending", "_sorted_keys")

    def __init__(self, base: Base | None = None) -> None:
        """Stand on ``base`` (an empty one by default)."""
        self._base: Base = base if base is not None else EmptyBase()
        self._known: dict[bytes, bytes | None] = {}
        """What the base has, of keys that were read."""
        self._pending: dict[bytes, bytes | None] = {}
        self._journal: list[tuple[bytes, object]] = []
        self._new_keys: list[bytes] = []
        """Pending, and not in ``_sorted_keys`` yet."""
        self._sorted_keys: SortedSet[bytes] = SortedSet()
        """Were pending once: a rollback leaves them here."""

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, None where there is none."""
        value = self._pending.get(key, _ABSENT)
        if value is _ABSENT:
            value = self._known.get(key, _ABSENT)
            if value is _ABSENT:
                value = self._known[key] = self._base.get(key)
        return value  # type: ignore[return-value]

    def set(self, key: bytes, value: bytes) -> None:
        """Set a key; an empty value is allowed and differs from none."""
        self._write(key, value)

    def delete(self, key: bytes) -> None:
        """Remove a key; nothing happens where there is none."""
        if self.get(key) is not None:
            self._write(key, None)

    def iterate(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield (key, value) with start <= key < stop, ascending; the keys are fixed at the call."""
        if self._new_keys:
            self._sorted_keys.update(self._new_keys)
            self._new_keys.clear()
        pending = self._pending
        keys = [key for key in self._sorted_keys.irange(start, stop, inclusive=(True, False)) if key in pending]
        shadowed = set(keys)
        merged = [(key, value) for key, value in self._base.iterate(start, stop) if key not in shadowed]
        merged += [(key, value) for key in keys if (value := pending[key]) is not None]
        merged.sort()
        return iter(merged)

    def begin(self) -> int:
        """Open a checkpoint and return its mark."""
        return len(self._journal)

    def rollback(self, mark: int) -> None:
        """Undo every change since the mark."""
        while len(self._journal) > mark:
            key, value = self._journal.pop()
            if value is _ABSENT:
                del self._pending[key]
            else:
                self._pending[key] = value  # type: ignore[assignment]

    def commit(self, mark: int) -> None:
        """Keep the changes since the mark; an outer rollback still undoes them."""

    def changes(self) -> list[tuple[bytes, bytes | None]]:
        """Return what differs from the base, by ascending key; None means deleted."""
        return sorted(self._pending.items(), key=_get_key)

    def _write(self, key: bytes, value: bytes | None) -> None:
        old = self._pending.get(key, _ABSENT)
        self._journal.append((key, old))
        if old is _ABSENT:
            self._new_keys.append(key)
        self._pending[key] = value


def _get_key(pair: tuple[bytes, bytes | None]) -> bytes:
    return pair[0]
