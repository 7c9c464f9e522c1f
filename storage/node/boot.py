"""Has the machine started anew since this home was used?  Then bytes that were never synced must prove themselves."""

from __future__ import annotations

import logging
from pathlib import Path

from da.core.errors import NotAFile
from da.input_file import read_input
from storage.whole_file import create_whole

log = logging.getLogger(__name__)

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
"""Linux; a random name for each start of the kernel."""

MAX_NOTE_BYTES = 4096
"""Of the note: a name takes 36."""


def is_new_boot(home: Path) -> bool:
    """Tell whether the kernel started after ``note_boot`` was called last; True where it can't be known."""
    now, noted = _read(_BOOT_ID), _read(home / "boot")
    return now is None or now != noted


def note_boot(home: Path) -> None:
    """Remember the present start of the kernel."""
    now = _read(_BOOT_ID)
    if now is None or now == _read(home / "boot"):
        return
    try:
        with create_whole(home / "boot") as write:
            write(now.encode())
    except (
        OSError,
        NotAFile,
    ) as error:
        # A full disk: the next start looks again at what was never synced, and this one goes on.
        log.warning("this start is not noted in %s: %s", home, error)


def _read(path: Path) -> str | None:
    try:
        return read_input(path, limit_bytes=MAX_NOTE_BYTES).decode("ascii").strip()
    except (FileNotFoundError, NotAFile, UnicodeDecodeError):
        return None
