"""A file that a person names: a device has no end and a pipe may never begin, so neither is read."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from da.core.errors import NotAFile


def open_input(path: Path, *, next_step: str = "name a file") -> int:
    """Return a descriptor of a file, for reading.

    Raises:
        NotAFile: a folder, a device, a pipe or a socket.
        OSError: it is missing, or can't be read.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    mode = os.fstat(fd).st_mode
    if stat.S_ISREG(mode):
        return fd
    os.close(fd)
    found = "is a folder" if stat.S_ISDIR(mode) else "is a device, a pipe or a socket"
    raise NotAFile(path=str(path), found=found, next_step=next_step)


def read_input(path: Path, *, limit_bytes: int) -> bytes:
    """Return the bytes of a file of at most ``limit_bytes``.

    Raises:
        NotAFile: a folder, a device or a pipe, or a file that is longer.
        OSError: it is missing, or can't be read.
    """
    with os.fdopen(open_input(path), "rb", buffering=0) as file:
        num_bytes = os.fstat(file.fileno()).st_size
        if num_bytes > limit_bytes:
            what = f"has {num_bytes} bytes, at most {limit_bytes} are read"
            raise NotAFile(path=str(path), found=what, next_step="is it the right one?")
        return file.read() or b""
