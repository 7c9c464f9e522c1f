"""Files that are there whole or not at all.

Invariant: whatever happens, SIGKILL included, nothing incomplete stands under the final name.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from da.landing import open_part

FORCE_HELP = "Replace a file that is there."
"""Of the option that ``refuse_existing`` names."""


def refuse_existing(path: Path, *, is_forced: bool) -> None:
    """Raise ValueError where something has the name already and nobody said that it may go."""
    if not is_forced and os.path.lexists(path):
        raise ValueError(f"{path} exists already; next: name another file, or add --force to replace it")


@contextmanager
def create_whole(path: Path) -> Iterator[Callable[[bytes], None]]:
    """Give a function that writes a file whole: under another name, synced, then renamed.

    Whatever happens in the block, ``path`` is as it was before, or complete; nothing else stays behind.
    """
    fd, staged = open_part(path)
    is_written = False

    def write(data: bytes) -> None:
        nonlocal is_written
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        os.fsync(fd)
        is_written = True

    try:
        try:
            yield write
        finally:
            os.close(fd)
        if is_written:
            os.rename(staged, path)
    finally:
        staged.unlink(missing_ok=True)
