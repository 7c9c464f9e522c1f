"""States as they lie in LMDB (``chain.store``): a snapshot's, one of some blocks ago, and one with what has left it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import lmdb

from chain.core.rounds.archive import ARCHIVED_PREFIXES
from chain.core.state import Base


class SnapshotState:
    """A Base over one LMDB transaction."""

    __slots__ = ("_database", "_transaction")

    def __init__(self, transaction: lmdb.Transaction, database: Any) -> None:
        """Read one named database; valid as long as the transaction is."""
        self._transaction = transaction
        self._database = database

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, None where there is none."""
        value = self._transaction.get(key, db=self._database)
        return None if value is None else bytes(value)

    def iterate(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield (key, value) with start <= key < stop, ascending."""
        with self._transaction.cursor(db=self._database) as cursor:
            if not cursor.set_range(start):
                return
            for found, value in cursor:
                key = bytes(found)
                if key >= stop:
                    return
                yield key, bytes(value)


UNKNOWN: Any = object()
"""In place of a value: nothing is remembered of the key."""

MAX_KNOWN_KEYS = 32_768
"""Of the writer's state that are remembered, some 10 MB."""
MAX_KNOWN_VALUE_BYTES = 256
"""Of a value that is remembered: accounts and most records."""


class KnownState(SnapshotState):
    """The newest state as its writer reads it: what was read or written of late is remembered from block to block.

    A transfer is looked at three times, by CheckTx, FinalizeBlock and Commit, and a read of LMDB takes a microsecond.
    """

    __slots__ = ("_known",)

    def __init__(self, transaction: lmdb.Transaction, database: Any, known: dict[bytes, bytes | None]) -> None:
        """Read one named database; ``known`` is what it holds under some keys, None where nothing."""
        super().__init__(transaction, database)
        self._known = known

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, None where there is none."""
        value: bytes | None = self._known.get(key, UNKNOWN)
        if value is UNKNOWN:
            value = super().get(key)
            remember_all(self._known, ((key, value),))
        return value


def remember_all(known: dict[bytes, bytes | None], pairs: Iterable[tuple[bytes, bytes | None]]) -> None:
    """Have ``known`` say what keys hold now."""
    for key, value in pairs:
        if value is not None and len(value) > MAX_KNOWN_VALUE_BYTES:
            known.pop(key, None)
            continue
        if len(known) >= MAX_KNOWN_KEYS:
            known.clear()
        known[key] = value


class PastState:
    """A state as it was before what has changed since."""

    __slots__ = ("_base", "_changed")

    def __init__(self, base: Base, changed: dict[bytes, bytes | None]) -> None:
        """Stand on ``base``, with the old values of ``changed``."""
        self._base = base
        self._changed = changed

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, None where there was none."""
        return self._changed[key] if key in self._changed else self._base.get(key)

    def iterate(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield (key, value) with start <= key < stop, ascending."""
        found: dict[bytes, bytes | None] = dict(self._base.iterate(start, stop))
        found.update((key, value) for key, value in self._changed.items() if start <= key < stop)
        return iter([(key, value) for key in sorted(found) if (value := found[key]) is not None])


class ArchiveState(SnapshotState):
    """The same, and what has left it."""

    __slots__ = ("_archive",)

    def __init__(self, transaction: lmdb.Transaction, database: Any, archive: Any) -> None:
        """Read a state and, behind it, the archive."""
        super().__init__(transaction, database)
        self._archive = archive

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, or the last it had."""
        value = super().get(key)
        if value is None and key[:3] in ARCHIVED_PREFIXES:
            archived = self._transaction.get(key, db=self._archive)
            value = None if archived is None else bytes(archived)
        return value


def iterate_all(state: Base) -> Iterator[tuple[bytes, bytes]]:
    """Yield every pair of the state, ascending; keys begin with an ASCII prefix."""
    return state.iterate(b"\x00", b"\xff")
