"""Where a file that was asked for may land.

A download is made under another name and renamed, and a rename replaces whatever has the name: a device such as
``/dev/null`` too.  So what is there must be a file, or nothing.
"""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from da.core.errors import NotAFile


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
