"""Text to tokens: bytes by default, or a tokenizer's JSON file that the recipe names by digest (extra ``hf``)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from da.core.errors import NotAFile
from da.core.hashing import compute_digest
from da.input_file import read_input
from training.core.errors import (
    FORMAT_STEP,
    CorpusFormatError,
    MissingExtraError,
    TokenizerError,
    TokenizerMissingError,
)

MAX_TOKENIZER_BYTES = 1 << 30
"""Far more than any tokenizer.json has."""

_OTHER_STEP = "give another tokenizer.json to `trainer recipe --tokenizer`, such as one of bytes (BPE)"


class Tokenizer(Protocol):
    """What a corpus needs of one."""

    @property
    def size(self) -> int:
        """Return how many tokens there are: ids from 0 up to it."""

    def encode(self, pieces: Sequence[bytes]) -> npt.NDArray[Any]:
        """Return the tokens of all pieces, in order."""

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens."""


class ByteTokenizer:
    """Each byte is a token."""

    size = 256

    def encode(self, pieces: Sequence[bytes]) -> npt.NDArray[Any]:
        """Return the bytes."""
        return np.frombuffer(b"".join(pieces), dtype=np.uint8)

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text; bytes that are no UTF-8 are shown as replacement characters."""
        return bytes(tokens).decode("utf-8", errors="replace")


class FileTokenizer:
    """A tokenizer of the ``tokenizers`` library, from its JSON."""

    def __init__(self, inner: Any, size: int, path: Path) -> None:
        """Wrap the library's object, of ids below ``size``."""
        self._inner = inner
        self._size = size
        self._path = path
        self._dtype = np.uint16 if size <= 1 << 16 else np.uint32

    @property
    def size(self) -> int:
        """Return the largest id and one, added tokens included: a vocabulary may have gaps."""
        return self._size

    def encode(self, pieces: Sequence[bytes]) -> npt.NDArray[Any]:
        """Return the tokens; bytes that are no UTF-8 become replacement characters.

        Raises `CorpusFormatError` for an id that the vocabulary lacks: a post-processor may name one; and for words
        that it has no token for, not even an unknown one.
        """
        if not pieces:
            return np.zeros(0, dtype=self._dtype)
        with _explain(
            self._path, "no token for some of the text", "tokens for any text, such as an unknown one", _OTHER_STEP
        ):
            found = self._inner.encode_batch([piece.decode("utf-8", errors="replace") for piece in pieces])
        tokens = np.concatenate([np.array(each.ids, dtype=np.uint32) for each in found])
        if tokens.size and int(tokens.max()) >= self._size:
            expected = f"ids of its own vocabulary, at most {self._size - 1}"
            raise CorpusFormatError(str(self._path), f"token {int(tokens.max())}", expected)
        return tokens.astype(self._dtype)

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text, without the library's special tokens. Raises `CorpusFormatError` where there is none."""
        with _explain(self._path, "no text for some of the tokens", "text for any tokens", _OTHER_STEP):
            return str(self._inner.decode(list(tokens)))


BYTES = ByteTokenizer()
"""The default."""


def load_tokenizer(path: Path | None, digest: str, vocabulary: int) -> Tokenizer:
    """Return the recipe's tokenizer: bytes where it names none.

    Raises `TokenizerError` where file and recipe differ, `CorpusFormatError` for a file that is no tokenizer or has an
    id that the model lacks.
    """
    if path is None and not digest:
        return BYTES
    if path is None:
        raise TokenizerError(digest, "")
    text = _read(path)
    got = compute_digest(text).hex()
    if got != digest:
        raise TokenizerError(digest, got)
    try:
        from tokenizers import Tokenizer as Library
    except ImportError as error:
        raise MissingExtraError("hf", "tokenizers", "data.tokenizer_digest") from error
    with _explain(path, "no tokenizer", "a tokenizer.json of tokenizers"):
        inner = Library.from_str(text.decode())
    # What a file says of one model's samples would cut each document of the text, or fill it up.
    inner.no_truncation()
    inner.no_padding()
    size = max(inner.get_vocab(with_added_tokens=True).values(), default=-1) + 1
    if not 0 < size <= vocabulary:
        got = f"tokens up to id {size - 1}" if size else "no tokens"
        raise CorpusFormatError(str(path), got, f"ids below model.vocabulary = {vocabulary}")
    return FileTokenizer(inner, size, path)


def compute_tokenizer_digest(path: Path) -> str:
    """Return what a recipe names a tokenizer by, hex. Raises `TokenizerMissingError`."""
    return compute_digest(_read(path)).hex()


@contextmanager
def _explain(path: Path, got: str, expected: str, next_step: str = FORMAT_STEP) -> Iterator[None]:
    """Raise `CorpusFormatError` where the library fails.

    It raises Exception itself, and where its Rust code panics a class that is none, and that it doesn't export.
    """
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        reason = " ".join(str(error).split())[:200]
        raise CorpusFormatError(str(path), f"{got} ({reason})", expected, next_step=next_step) from error


def _read(path: Path) -> bytes:
    try:
        return read_input(path, limit_bytes=MAX_TOKENIZER_BYTES)
    except OSError as error:
        raise TokenizerMissingError(f"{path} ({error.strerror})") from error
    except NotAFile as error:
        raise TokenizerMissingError(f"{path} ({error.found})") from error
