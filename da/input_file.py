"""A file that a person names: a device has no end and a pipe may never begin, so neither is read."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from da.core.errors import NotAFile


def read_input(path: Path, *, limit_bytes: int) -> bytes:
    """Return the bytes of a file of at most ``limit_bytes``.

    Raises:
        NotAFile: a folder, a device or a pipe, or a file that is longer.
        OSError: it is missing, or can't be read.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            what = "is a folder" if stat.S_ISDIR(found.st_mode) else "is a device, a pipe or a socket"
            raise NotAFile(path=str(path), found=what, next_step="name a file")
        if found.st_size > limit_bytes:
            what = f"has {found.st_size} bytes, at most {limit_bytes} are read"
            raise NotAFile(path=str(path), found=what, next_step="is it the right one?")
        with os.fdopen(fd, "rb", buffering=0, closefd=False) as file:
            return file.read() or b""
    finally:
        os.close(fd)
