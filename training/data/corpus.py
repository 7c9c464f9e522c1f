"""The text a worker learns: the Python standard library's own source, or a person's file (SPEC, *Text*).

Files are taken in order of their path; a file is held out by the hash of its bytes, so the split needs no
list.  A single file is split by the hash of its 16 KiB blocks.  Another Python version has another text: the
digests are shown and reported, and are no part of what is agreed.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from da.core.hashing import compute_digest
from training.core.errors import CorpusMissingError, CorpusTooSmallError
from training.core.recipe import DataRecipe, DataSource

BLOCK_BYTES = 16 * 1024
"""Unit of the split of a single file: large against a sample, small against any useful text."""

_LEFT_OUT = frozenset({"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__", "_vendor"})
"""Folders of the standard library that are tests, or not the standard library."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """Text, split."""

    train: npt.NDArray[np.uint8]
    """Bytes to learn."""
    held_out: npt.NDArray[np.uint8]
    """Bytes never trained on."""
    train_digest: bytes
    """blake3 of ``train``, 32 bytes; reported by a worker, no part of agreement."""
    held_out_digest: bytes
    """blake3 of ``held_out``, 32 bytes; shown beside every loss."""


def load_corpus(data: DataRecipe, file: Path | None = None) -> Corpus:
    """Read the recipe's text, or ``file`` in its place.

    Raises `CorpusMissingError` or `CorpusTooSmallError`.
    """
    if file is not None:
        return split_blocks(_read(file), data.held_out_bps)
    if data.source is DataSource.FILE:
        raise CorpusMissingError("the recipe's data.source = 'file'")
    folder = Path(sysconfig.get_paths()["stdlib"])
    return _split(_standard_library(folder), data.held_out_bps, str(folder))


def split_blocks(text: bytes, held_out_bps: int, where: str = "the file") -> Corpus:
    """Split one text by the hash of its blocks.

    Raises `CorpusTooSmallError`.
    """
    blocks = (text[at : at + BLOCK_BYTES] for at in range(0, len(text), BLOCK_BYTES))
    return _split(blocks, held_out_bps, where)


def check_size(corpus: Corpus, context: int) -> None:
    """Refuse a text without one whole sample on each side. Raises `CorpusTooSmallError`."""
    for part, text in (("training", corpus.train), ("held-out", corpus.held_out)):
        if text.size < context + 2:
            raise CorpusTooSmallError(part, int(text.size), context + 2)


def _standard_library(folder: Path) -> Iterator[bytes]:
    """Return the source files in order of their path below ``folder``."""
    paths = (path for path in folder.rglob("*.py") if _LEFT_OUT.isdisjoint(path.relative_to(folder).parts))
    for path in sorted(paths, key=lambda path: path.relative_to(folder).as_posix()):
        yield _read(path)


def _split(pieces: Iterable[bytes], held_out_bps: int, where: str) -> Corpus:
    train: list[bytes] = []
    held_out: list[bytes] = []
    for piece in pieces:
        share = int.from_bytes(compute_digest(piece)[:4], "big") * 10_000 >> 32
        (held_out if share < held_out_bps else train).append(piece)
    if not train and not held_out:
        raise CorpusMissingError(where)
    if not held_out and len(train) > 1:
        held_out.append(train.pop())
    train_bytes, held_out_bytes = b"".join(train), b"".join(held_out)
    return Corpus(
        train=np.frombuffer(train_bytes, dtype=np.uint8),
        held_out=np.frombuffer(held_out_bytes, dtype=np.uint8),
        train_digest=compute_digest(train_bytes),
        held_out_digest=compute_digest(held_out_bytes),
    )


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CorpusMissingError(f"{path} ({error.strerror})") from error
