"""The text a worker learns: the Python standard library's own source, a person's file, or a data set (SPEC, *Text*).

Files and documents are taken in order; each is held out by the hash of its bytes, so the split needs no list.  A
single text is split by the hash of its 16 KiB blocks; a file of tokens is never held whole, and its end is held out.
Where the recipe has a digest of both parts, a member with another text is refused before it joins.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from da.core.hashing import compute_digest
from training.core.errors import CorpusMissingError, CorpusTooSmallError, TextDigestError
from training.core.loss_unit import LossUnit, compute_bits_a_byte
from training.core.recipe import ANY_TEXT, DataRecipe, DataSource
from training.data.formats import is_documents, is_token_file, read_dataset, read_documents, read_text
from training.data.token_file import TokenFile, TokenRange
from training.data.tokenizer import BYTES, Tokenizer, load_tokenizer

BLOCK_BYTES = 16 * 1024
"""Unit of the split of a single file: large against a sample, small against any useful text."""

_LEFT_OUT = frozenset({"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__", "_vendor"})
"""Folders of the standard library that are tests, or not the standard library."""

Tokens = npt.NDArray[Any] | TokenRange
"""One unsigned integer a token: uint8 for bytes, else uint16 or uint32; sliced, and asked for its size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """Text, split."""

    train: Tokens
    """Tokens to learn."""
    held_out: Tokens
    """Tokens never trained on."""
    train_digest: bytes
    """blake3 of ``train``, 32 bytes."""
    held_out_digest: bytes
    """blake3 of ``held_out``, 32 bytes; shown beside every loss."""
    held_out_bytes: int | None = None
    """Bytes of the text that ``held_out`` stands for; None for a file of tokens, which doesn't say."""

    @property
    def loss_unit(self) -> LossUnit:
        """Return what a loss over this text is counted in."""
        return LossUnit.BYTE if self.held_out.dtype.itemsize == 1 else LossUnit.TOKEN

    def compute_bits_a_byte(self, loss: float) -> float | None:
        """Return a held-out loss in bits a byte of text, by the tokens and bytes of all of ``held_out``; or None."""
        if not self.held_out_bytes:
            return None
        return compute_bits_a_byte(loss, int(self.held_out.size), self.held_out_bytes)

    def describe_loss(self, loss: float) -> str:
        """Write a held-out loss with its unit, and in bits a byte where that is known."""
        bits = self.compute_bits_a_byte(loss)
        return f"{loss:.6f} {self.loss_unit}" + (f", {bits:.4f} bits a byte" if bits is not None else "")

    @property
    def digest(self) -> bytes:
        """Return blake3 of both digests, 32 bytes: ``data.digest`` of a recipe."""
        return compute_digest(self.train_digest + self.held_out_digest)


def load_corpus(
    data: DataRecipe, file: Path | None = None, *, tokenizer_file: Path | None = None, vocabulary: int = 256
) -> Corpus:
    """Read the recipe's text, or ``file`` in its place: text, .jsonl, .parquet, .bin (tokens) or a saved data set.

    Raises `CorpusMissingError`, `CorpusTooSmallError`, `CorpusFormatError`, `TokenizerError`, `MissingExtraError`.
    """
    if file is not None and is_token_file(file):
        return _cut(TokenFile(file, data.token_bits, vocabulary), data.held_out_bps)
    tokenizer = load_tokenizer(tokenizer_file, data.tokenizer_digest, vocabulary)
    if file is not None and is_documents(file):
        return _split(read_documents(file, data.column), data.held_out_bps, str(file), tokenizer)
    if file is not None:
        return split_blocks(read_text(file), data.held_out_bps, tokenizer=tokenizer)
    if data.source is DataSource.DATASET:
        documents = read_dataset(data.dataset, data.split, data.column)
        return _split(documents, data.held_out_bps, data.dataset, tokenizer)
    if data.source is DataSource.FILE:
        raise CorpusMissingError("the recipe's data.source = 'file'")
    folder = Path(sysconfig.get_paths()["stdlib"])
    return _split(_standard_library(folder), data.held_out_bps, str(folder), tokenizer)


def split_blocks(text: bytes, held_out_bps: int, where: str = "the file", *, tokenizer: Tokenizer = BYTES) -> Corpus:
    """Split one text by the hash of its blocks.

    Raises `CorpusTooSmallError`.
    """
    blocks = (text[at : at + BLOCK_BYTES] for at in range(0, len(text), BLOCK_BYTES))
    return _split(blocks, held_out_bps, where, tokenizer)


def check_text(data: DataRecipe, corpus: Corpus, file: Path | None) -> None:
    """Refuse another text than the run's; ``file`` is what a member named in its place.

    Without ``data.digest`` a run has its source's own text, and one of a file has none that members could agree on.
    Raises `TextDigestError`.
    """
    is_foreign = file is not None or data.source is DataSource.FILE
    if is_agreed_text(data, corpus) is None and data.digest != ANY_TEXT and is_foreign:
        raise TextDigestError("", corpus.digest.hex())


def is_agreed_text(data: DataRecipe, corpus: Corpus) -> bool | None:
    """Return True where the text is the one that the recipe names, None where it names none.

    Raises `TextDigestError` where it names another.
    """
    if data.digest in ("", ANY_TEXT):
        return None
    if corpus.digest.hex() != data.digest:
        raise TextDigestError(data.digest, corpus.digest.hex())
    return True


def check_size(corpus: Corpus, context: int) -> None:
    """Refuse a text without one whole sample on each side. Raises `CorpusTooSmallError`."""
    for part, text in (("training", corpus.train), ("held-out", corpus.held_out)):
        if text.size < context + 2:
            raise CorpusTooSmallError(part, int(text.size), context + 2)


def _standard_library(folder: Path) -> Iterator[bytes]:
    """Return the source files in order of their path below ``folder``."""
    paths = (path for path in folder.rglob("*.py") if _LEFT_OUT.isdisjoint(path.relative_to(folder).parts))
    for path in sorted(paths, key=lambda path: path.relative_to(folder).as_posix()):
        yield read_text(path)


def _split(pieces: Iterable[bytes], held_out_bps: int, where: str, tokenizer: Tokenizer) -> Corpus:
    train: list[bytes] = []
    held_out: list[bytes] = []
    for piece in pieces:
        share = int.from_bytes(compute_digest(piece)[:4], "big") * 10_000 >> 32
        (held_out if share < held_out_bps else train).append(piece)
    if not train and not held_out:
        raise CorpusMissingError(where)
    if not held_out and len(train) > 1:
        held_out.append(train.pop())
    return _finish(tokenizer.encode(train), tokenizer.encode(held_out), sum(map(len, held_out)))


def _cut(tokens: TokenFile, held_out_bps: int) -> Corpus:
    """Hold out the end of one long run of tokens; both parts are read where they stand."""
    border = tokens.size - tokens.size * held_out_bps // 10_000
    return _finish(TokenRange(tokens, 0, border), TokenRange(tokens, border, tokens.size))


def _finish(train: Tokens, held_out: Tokens, held_out_bytes: int | None = None) -> Corpus:
    return Corpus(
        train=train,
        held_out=held_out,
        train_digest=_digest(train),
        held_out_digest=_digest(held_out),
        held_out_bytes=held_out_bytes,
    )


def _digest(tokens: Tokens) -> bytes:
    if not isinstance(tokens, TokenRange):
        return compute_digest(np.ascontiguousarray(tokens).view(np.uint8).data)
    hasher = blake3()
    for piece in tokens.pieces():
        hasher.update(piece.view(np.uint8).data)
    return hasher.digest()
