"""Files that are there whole or not at all.

Invariant: whatever happens, SIGKILL included, nothing incomplete stands under the final name.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from da.landing import open_part


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
