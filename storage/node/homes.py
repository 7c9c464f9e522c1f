"""A home directory belongs to one process at a time, and to one chain for good (SPEC.md 2)."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from da.input_file import read_input
from storage.core.errors import HomeInUse, StorageError, WrongChain
from storage.whole_file import create_whole

MAX_NOTE_BYTES = 4096
"""Of the note: a hash takes 64."""


@contextmanager
def lock_home(home: Path) -> Iterator[None]:
    """Hold a home directory for this process.

    Raises: HomeInUse.
    """
    fd = os.open(home / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise HomeInUse(home=str(home)) from error
        yield
    finally:
        os.close(fd)


def bind_home(home: Path, genesis_hash: bytes) -> None:
    """Note which chain a home belongs to, the first time; check it after that.

    Raises: WrongChain, StorageError where the note can't be read.
    """
    path = home / "genesis"
    if path.exists():
        try:
            expected = bytes.fromhex(read_input(path, limit_bytes=MAX_NOTE_BYTES).decode("ascii"))
        except ValueError as error:
            raise StorageError(
                f"{path} holds no hash: {error}; next: write {genesis_hash.hex()} there if the home is of this chain"
            ) from error
        if expected != genesis_hash:
            raise WrongChain(home=str(home), expected=expected, got=genesis_hash)
        return
    with create_whole(path) as write:
        write(genesis_hash.hex().encode())
