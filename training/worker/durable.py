"""Files that are there whole or not at all: temporary name, fsync, rename, fsync of the folder."""

from __future__ import annotations

import errno
import logging
import os
import re
import threading
from pathlib import Path
from typing import TextIO

LOG = logging.getLogger("trainer")

_TEMPORARY = re.compile(r"\.\d+\.tmp$")


def save_durable(path: Path, data: bytes) -> None:
    """Replace ``path`` by ``data``; after the return a power cut keeps the new bytes, before it the old ones."""
    temporary = path.with_name(f"{path.name}.{threading.get_ident()}.tmp")  # two threads may save the same
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)  # a full disk is no place for half a file
        raise
    sync_folder(path.parent)


def remove_half_written(folder: Path) -> None:
    """Remove what `save_durable` had begun in a folder when its process was killed; nobody else may save there."""
    for left in folder.glob("*.tmp"):
        if _TEMPORARY.search(left.name):
            left.unlink(missing_ok=True)


def is_disk_full(error: OSError) -> bool:
    """Say whether an error means that there is no room: of the disk, of a quota, of the longest file (`ulimit -f`)."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def close_with_gap(file: TextIO) -> None:
    """Close a file of lines; what a full disk does not take of the last ones is a gap in it."""
    try:
        file.close()
    except OSError as error:
        if not is_disk_full(error):
            raise
        LOG.warning("%s has a gap at its end: %s", file.name, error.strerror)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
