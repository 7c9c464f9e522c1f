"""A file of little-endian tokens (.bin), read piece by piece from an open descriptor (SPEC, *Text*).

It is never held whole, nor mapped: of a mapped file that somebody cuts short the next look is a signal, without a
word.  Each piece is checked to be of the file as it was opened, and below the vocabulary, before anybody trains on it.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from da.core.errors import NotAFile
from da.input_file import open_input
from training.core.errors import CorpusFormatError, CorpusMissingError, TextChangedError

_PIECE_TOKENS = 1 << 22
"""Tokens looked at at once while all are."""


class TokenFile:
    """A file of tokens as it was when it was opened; one that is put in its place by name isn't looked at."""

    def __init__(self, path: Path, token_bits: int, vocabulary: int) -> None:
        """Open it. Raises `CorpusMissingError` and `CorpusFormatError`."""
        self.dtype = np.dtype(f"<u{token_bits // 8}")
        self._path, self._vocabulary = path, vocabulary
        try:
            self._fd = open_input(path)
        except OSError as error:
            raise CorpusMissingError(f"{path} ({error.strerror})") from error
        except NotAFile as error:
            raise CorpusMissingError(f"{path} ({error.found})") from error
        weakref.finalize(self, os.close, self._fd)
        status = os.fstat(self._fd)
        self._num_bytes, self._changed_ns = status.st_size, status.st_mtime_ns
        width = self.dtype.itemsize
        if self._num_bytes == 0 or self._num_bytes % width:
            expected = f"a multiple of {width} (data.token_bits = {token_bits})"
            raise CorpusFormatError(str(path), f"{self._num_bytes} bytes", expected)
        self.size = self._num_bytes // width

    def read(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Return tokens ``start`` to ``stop``, which must lie in the file.

        Raises `TextChangedError` where the file is not what it was, `CorpusFormatError` for a token that there isn't.
        """
        width = self.dtype.itemsize
        num_bytes = (stop - start) * width
        try:
            found = self._pread(start * width, num_bytes)
            status = os.fstat(self._fd)  # after reading: what was written meanwhile shows
        except OSError as error:
            raise TextChangedError(str(self._path), f"it can't be read any more: {error.strerror}") from error
        if status.st_size != self._num_bytes:
            raise TextChangedError(str(self._path), f"it has {status.st_size} bytes, it had {self._num_bytes}")
        if status.st_mtime_ns != self._changed_ns:
            raise TextChangedError(str(self._path), "somebody has written to it since it was opened")
        if len(found) != num_bytes:
            raise TextChangedError(str(self._path), f"{len(found)} of {num_bytes} bytes could be read of one sample")
        tokens = np.frombuffer(found, dtype=self.dtype)
        largest = int(tokens.max(initial=0))
        if largest >= self._vocabulary:
            raise CorpusFormatError(str(self._path), f"token {largest}", f"below model.vocabulary = {self._vocabulary}")
        return tokens

    def _pread(self, at: int, num_bytes: int) -> bytes:
        """Return up to so many bytes: a call may return fewer, and only at the end none."""
        found = os.pread(self._fd, num_bytes, at)
        while len(found) < num_bytes:
            more = os.pread(self._fd, num_bytes - len(found), at + len(found))
            if not more:
                break
            found += more
        return found


class TokenRange:
    """A run of a file's tokens that is sliced as an array is; each slice is read, and checked."""

    def __init__(self, file: TokenFile, start: int, stop: int) -> None:
        """Stand for tokens ``start`` to ``stop`` of a file."""
        self._file, self._start, self._stop = file, start, stop

    @property
    def size(self) -> int:
        """Return how many tokens there are."""
        return self._stop - self._start

    @property
    def dtype(self) -> np.dtype[Any]:
        """Return what each is."""
        return self._file.dtype

    def __len__(self) -> int:
        """Return how many tokens there are."""
        return self.size

    def __getitem__(self, wanted: slice) -> npt.NDArray[Any]:
        """Return some of them. Raises as `TokenFile.read`."""
        start, stop, step = wanted.indices(self.size)
        return self._file.read(self._start + start, self._start + max(start, stop))[::step]

    def pieces(self) -> Iterator[npt.NDArray[Any]]:
        """Return all of them, in order, a few megabytes at once."""
        return (self[at : at + _PIECE_TOKENS] for at in range(0, self.size, _PIECE_TOKENS))
