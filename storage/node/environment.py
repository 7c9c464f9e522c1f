"""An LMDB environment that outlives its errors (SPEC.md 3).

What LMDB says of a full disk or a broken medium becomes one of storage's refusals. After a failed write of its root
page LMDB refuses everything, reads too, until it is opened again: that happens here. A file that is not LMDB's is set
aside by name when it is opened, and so is one from which pages were cut off, as touching those would end the process.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lmdb

from storage.node.lmdb_pages import is_complete
from storage.node.room import refuse_when_full

log = logging.getLogger(__name__)

MAX_READERS = 16
"""Reads are short and under their owner's lock."""

_BROKEN = (lmdb.InvalidError, lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.VersionMismatchError)
"""What LMDB says of a file that is none of its own, or not any more."""


class Environment:
    """One environment; its owner lets in one thread at a time."""

    def __init__(self, path: Path, *, map_bytes: int, tables: Sequence[bytes] = (), is_synced: bool = True) -> None:
        """Open or make it; one that is broken is set aside, and a new one takes its place.

        Raises: DiskFull, DiskFailed.
        """
        self._path = path
        self._table_names = tables
        self._is_synced = is_synced
        self._is_open = True
        self.map_bytes = map_bytes
        self.tables: dict[bytes, Any] = {}
        """LMDB's handles of the named tables."""
        self._environment: lmdb.Environment | None = None
        # None: it could not be opened again yet.
        with refuse_when_full():
            try:
                self._environment = self._open()
            except _BROKEN as error:
                aside = path.with_name(f"{path.name}.broken.{secrets.token_hex(4)}")
                log.error("%s is broken: %s; set aside as %s, to be looked at and removed", path, error, aside)
                os.rename(path, aside)
                self._environment = self._open()

    @contextmanager
    def read(self) -> Iterator[lmdb.Transaction]:
        """Give a read transaction; raises DiskFailed."""
        with refuse_when_full(), self._begin(is_write=False) as txn:
            yield txn

    @contextmanager
    def write(self, asked_bytes: int = 0) -> Iterator[lmdb.Transaction]:
        """Give a write transaction that is committed at the end.

        Raises: DiskFull, DiskFailed, lmdb.MapFullError; nothing has changed then.
        """
        with refuse_when_full(asked_bytes), self._begin(is_write=True) as txn:
            yield txn

    def grow(self, map_bytes: int) -> None:
        """Make the map larger; no transaction is open."""
        self.map_bytes = map_bytes
        if self._environment is not None:
            self._environment.set_mapsize(map_bytes)

    def close(self) -> None:
        """Sync and close; a second time is no error."""
        if not self._is_open:
            return
        self._is_open = False
        if self._environment is None:
            return
        try:
            self._environment.sync(True)
        except lmdb.Error as error:
            log.error("%s was not synced at its end: %s", self._path, error)
        self._environment.close()

    def _begin(self, *, is_write: bool) -> lmdb.Transaction:
        if self._environment is not None:
            try:
                return self._environment.begin(write=is_write)
            except lmdb.PanicError as error:
                log.error("%s is opened again: %s", self._path, error)
                self._environment.close()
                self._environment = None
        self._environment = self._open(may_create=False)  # a disk that is gone now comes back with what it had
        return self._environment.begin(write=is_write)

    def _open(self, *, may_create: bool = True) -> lmdb.Environment:
        if may_create:
            self._path.mkdir(parents=True, exist_ok=True)
        environment = lmdb.open(
            str(self._path),
            map_size=self.map_bytes,
            max_dbs=len(self._table_names),
            max_readers=MAX_READERS,
            sync=self._is_synced,
            metasync=self._is_synced,
            create=may_create,
        )
        is_whole = False
        try:
            _check_length(environment, self._path / "data.mdb")
            with environment.begin(write=True) as txn:
                self.tables = {name: environment.open_db(name, txn=txn) for name in self._table_names}
            is_whole = True
        finally:
            if not is_whole:
                environment.close()
        return environment


def _check_length(environment: lmdb.Environment, data: Path) -> None:
    """Give a file that lacks pages at its end its full length; raises ``lmdb.CorruptedError`` where they are needed."""
    page_bytes = int(environment.stat()["psize"])
    expected, got = (environment.info()["last_pgno"] + 1) * page_bytes, data.stat().st_size
    if got >= expected:
        return
    if not is_complete(data, page_bytes):
        raise lmdb.CorruptedError(f"{got} bytes, expected {expected}: its end was cut off")
    os.truncate(data, expected)
