"""Where a file that was asked for may land.

A download is made under another name and renamed, and a rename replaces whatever has the name: a device such as
``/dev/null`` too.  So what is there must be a file, or nothing.  A key is never replaced: it is linked under its name,
which fails where something has it.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from pathlib import Path

from da.core.errors import NotAFile

_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)
"""What a file system says that knows no second name of a file."""


def check_target(path: Path) -> None:
    """Raise ``NotAFile`` where ``path`` is a folder, a device or a pipe."""
    try:
        kind = path.stat().st_mode
    except FileNotFoundError:
        kind = stat.S_IFREG
    if stat.S_ISDIR(kind) or not path.name:
        raise NotAFile(path=str(path), found="is a folder", next_step="name a file in it")
    if not stat.S_ISREG(kind):
        raise NotAFile(path=str(path), found="is a device, a pipe or a socket", next_step="give another name")


def open_part(path: Path, *, mode: int = 0o644) -> tuple[int, Path]:
    """Create the file that will become ``path``, beside it; return its descriptor, for writing, and its name.

    Raises:
        NotAFile: ``path`` is a folder, a device or a pipe.
        OSError: its folder is missing, read-only or full; it names ``path``.
    """
    check_target(path)
    part = path.with_name(f".{path.name[:40]}.{secrets.token_hex(4)}.part")
    try:
        return os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, mode), part
    except OSError as error:
        text = f"can't be made: {error.strerror}; next: name a file in a folder that you may write to"
        raise type(error)(error.errno, text, str(path)) from error


def create_new(path: Path, data: bytes, *, mode: int) -> None:
    """Write a file that is not there yet, durably: it has its name when all of it is on the medium, never before.

    Raises:
        FileExistsError: there is one; it stays as it is.
        NotAFile: ``path`` is a folder, a device or a pipe.
        OSError: its folder is missing, read-only or full; then there is none.
    """
    fd, part = open_part(path, mode=mode)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(fd)
        publish_new(part, path)
    finally:
        part.unlink(missing_ok=True)


def publish_new(part: Path, path: Path) -> None:
    """Give a file that is whole and synced the name ``path``, durably; raises FileExistsError where it is taken."""
    try:
        os.link(part, path)
    except FileExistsError as error:
        raise FileExistsError(error.errno, error.strerror, str(path)) from error
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if path.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from error
        os.rename(part, path)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make the names in a folder survive a power cut."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
