"""A file system without room answers with one error wherever it is noticed, a broken one with another (SPEC.md 3)."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

import lmdb

from storage.core.errors import DiskFailed, DiskFull

FULL_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""No space left on the device; the user's quota there is used up; a file may grow no further."""

MEDIUM_ERRORS = (errno.EIO, errno.EROFS, errno.EBADMSG, errno.EUCLEAN, errno.ENODEV, errno.ENXIO, errno.ESTALE)
"""The medium fails, or is gone, or was made read-only after it failed."""

_BROKEN = (lmdb.DiskError, lmdb.PanicError, lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.InvalidError)
"""What LMDB says when pages can't be written, or are not what they should be."""


@contextmanager
def refuse_when_full(asked_bytes: int = 0) -> Iterator[None]:
    """Turn the word of the system, or of LMDB, for a full disk into DiskFull, for a broken one into DiskFailed.

    Other errors pass, LMDB's full map among them.
    """
    try:
        yield
    except (OSError, lmdb.Error) as error:
        code = error.errno if isinstance(error, OSError) else getattr(error, "code", None)
        if code in FULL_ERRORS:
            raise DiskFull(asked=asked_bytes, free=0, floor=0) from error
        if code in MEDIUM_ERRORS or isinstance(error, _BROKEN) or type(error) is lmdb.Error:
            raise DiskFailed(reason=str(error)) from error
        raise
