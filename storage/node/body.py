"""Reading the bytes of a kept shard, wherever they lie."""

from __future__ import annotations

import errno
import mmap
import os
import stat
from pathlib import Path
from typing import Protocol


class ShardReader(Protocol):
    """The bytes of one shard; stays readable when the shard is deleted meanwhile."""

    def read(self, start: int, num_bytes: int) -> bytes:
        """Return bytes from ``start`` on: at least one, unless the shard ends there."""
        ...

    def close(self) -> None:
        """Read no more."""
        ...


class FileReader:
    """A shard in a file of its own."""

    def __init__(self, path: Path) -> None:
        """Open; raises ``FileNotFoundError``, also for a pipe or a device, which has no bytes to keep."""
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        kind = os.fstat(self._fd).st_mode
        if not stat.S_ISREG(kind) and not stat.S_ISDIR(kind):  # a folder says what it is when it is read
            os.close(self._fd)
            raise FileNotFoundError(errno.ENOENT, "no file", str(path))
        self._mapped: mmap.mmap | None = None

    def map(self, start: int, num_bytes: int) -> memoryview:
        """Return bytes from ``start`` on without copying them, as far as the file goes.

        They are for system calls only: the system reports a medium that fails as an error, but code that touched the
        bytes itself would be killed. Valid until ``close``.
        """
        if self._mapped is None:
            size = os.fstat(self._fd).st_size
            if start >= size:
                return memoryview(b"")
            self._mapped = mmap.mmap(self._fd, size, prot=mmap.PROT_READ)
        return memoryview(self._mapped)[start : start + num_bytes]

    def read(self, start: int, num_bytes: int) -> bytes:
        """See ``ShardReader``."""
        return os.pread(self._fd, num_bytes, start)

    def close(self) -> None:
        """See ``ShardReader``."""
        self._mapped = None  # unmapped with the last view of it
        os.close(self._fd)


class MemoryReader:
    """A small shard, copied out of the database."""

    def __init__(self, body: bytes) -> None:
        """Read from ``body``."""
        self._body = body

    def read(self, start: int, num_bytes: int) -> bytes:
        """See ``ShardReader``."""
        return self._body[start : start + num_bytes]

    def close(self) -> None:
        """See ``ShardReader``."""
