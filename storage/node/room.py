"""A file system without room answers with one error, wherever it is noticed (SPEC.md 3)."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

import lmdb

from storage.core.errors import DiskFull

FULL_ERRORS = (errno.ENOSPC, errno.EDQUOT)
"""No space left on the device; the user's quota there is used up."""


@contextmanager
def refuse_when_full(asked_bytes: int = 0) -> Iterator[None]:
    """Turn the word of the operating system, or of LMDB, for a full disk into DiskFull; other errors pass."""
    try:
        yield
    except (OSError, lmdb.Error) as error:
        code = error.errno if isinstance(error, OSError) else getattr(error, "code", None)
        if code in FULL_ERRORS:
            raise DiskFull(asked=asked_bytes, free=0, floor=0) from error
        raise
