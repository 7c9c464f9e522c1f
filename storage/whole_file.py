"""Files that are there whole or not at all.

Invariant: whatever happens, SIGKILL included, nothing incomplete stands under the final name.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def create_whole(path: Path) -> Iterator[Callable[[bytes], None]]:
    """Give a function that writes a file whole: under another name, synced, then renamed.

    Whatever happens in the block, ``path`` is as it was before, or complete; nothing else stays behind.
    """
    staged = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    fd = os.open(staged, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644)
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
