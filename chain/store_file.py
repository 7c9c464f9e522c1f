"""LMDB's file before it is mapped: one whose end is missing kills whoever reads there (SIGBUS), without a word.

LMDB's two meta pages (mdb.c 0.9, ``MDB_meta``) say how far pages were given out.  A file may be somewhat shorter and
whole: pages at its end that were given back before they were written never are.  So a short file is only suspected,
and a child process reads all that is in use: it dies in our place.

| bytes of a meta page | |
|---|---|
| 16 .. 24 | magic 0xBEEFC0DE, version of the format 1 |
| 40 .. 44 | bytes of a page |
| 136 .. 152 | last page that was given out, number of the transaction that wrote this |
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

FILE_NAME = "data.mdb"
"""LMDB's own."""
PROBE_SECONDS = 30.0
"""For starting a process and reading a small database."""
PROBE_BYTES_PER_SECOND = 10_000_000
"""A disk that reads more slowly than this, on top of it, is not waited for: a slow one does 100 MB a second."""
KILL_SECONDS = 2.0
"""For the end of a process that was killed; one that waits for a dead disk does not end."""

_MAGIC, _VERSION = 0xBEEFC0DE, 1
_HEAD = struct.Struct("<16xII16xI")
_TAIL = struct.Struct("<136xQQ")
_PROBE = (
    "import lmdb, os, sys\n"
    "env = lmdb.open(sys.argv[1], readonly=True, lock=False)\n"
    "env.copyfd(os.open(os.devnull, os.O_WRONLY), compact=True)\n"
)
"""A compacting copy reads every page that is in use, and the list of free ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortFile:
    """A database's file that lacks pages which are in use."""

    expected_bytes: int
    """Up to the last page that was given out."""
    got_bytes: int
    """Its size."""


def has_file(directory: Path) -> bool:
    """Say whether there is a database; LMDB makes an empty file first, and one that died there begins again."""
    try:
        return (directory / FILE_NAME).stat().st_size > 0
    except FileNotFoundError:
        return False


def find_missing_end(directory: Path) -> ShortFile | None:
    """Return what a database's file lacks; None for a whole one, and for what LMDB itself refuses.

    Raises ``TimeoutError`` as `can_be_read`.
    """
    try:
        with (directory / FILE_NAME).open("rb") as file:
            expected_bytes = _read_expected_bytes(file)
            got_bytes = os.fstat(file.fileno()).st_size
    except OSError:
        return None
    if got_bytes >= expected_bytes or can_be_read(directory):
        return None
    return ShortFile(expected_bytes=expected_bytes, got_bytes=got_bytes)


def _read_expected_bytes(file: BinaryIO) -> int:
    """Return where the last page ends by the newer of the two meta pages, 0 where these are none."""
    page_bytes = 0
    newest = (-1, 0)
    for index in range(2):
        file.seek(index * page_bytes)
        page = file.read(_TAIL.size)
        if len(page) < _TAIL.size:
            break
        magic, version, page_bytes = _HEAD.unpack_from(page)
        if (magic, version) != (_MAGIC, _VERSION):
            return 0
        last_page, transaction = _TAIL.unpack_from(page)
        newest = max(newest, (transaction, last_page))
    return (newest[1] + 1) * page_bytes


def can_be_read(directory: Path) -> bool:
    """Say whether another process comes to the end of all that is in use; nobody may write meanwhile.

    Raises ``TimeoutError`` where the disk takes far too long for a file of this size.
    """
    num_bytes = (directory / FILE_NAME).stat().st_size
    seconds = PROBE_SECONDS + num_bytes / PROBE_BYTES_PER_SECOND
    command = [sys.executable, "-I", "-c", _PROBE, str(directory)]
    null = subprocess.DEVNULL
    process = subprocess.Popen(command, stdin=null, stdout=null, stderr=null)
    try:
        return process.wait(seconds) == 0
    except subprocess.TimeoutExpired as error:
        what = f"{directory / FILE_NAME}, {num_bytes:,} bytes, was not read to its end within {seconds:.0f} s"
        raise TimeoutError(what) from error
    finally:
        process.kill()
        with suppress(subprocess.TimeoutExpired):
            process.wait(KILL_SECONDS)
