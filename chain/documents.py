"""Files of a home that people and accidents change: what can't be read is named, with what to do about it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class HomeError(Exception):
    """The directory can't be used as asked; the message says what to do."""


class BrokenFile(HomeError):
    """A file is missing, or holds something else than it should."""

    def __init__(self, path: Path, error: Exception, next_step: str) -> None:
        """Keep the path."""
        reason = f"no {error}" if isinstance(error, KeyError) else str(error)
        super().__init__(f"{path} can't be read: {reason}; next: {next_step}")
        self.path = path


@contextmanager
def reading(path: Path, next_step: str) -> Iterator[None]:
    """Turn what goes wrong with reading a file, or with what is in it, into BrokenFile."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BrokenFile(path, error, next_step) from error
