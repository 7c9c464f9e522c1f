"""Text to tokens: bytes by default, or a tokenizer's JSON file that the recipe names by digest (extra ``hf``)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from da.core.errors import NotAFile
from da.core.hashing import compute_digest
from da.input_file import read_input
from training.core.errors import CorpusFormatError, MissingExtraError, TokenizerError, TokenizerMissingError

MAX_TOKENIZER_BYTES = 1 << 30
"""Far more than any tokenizer.json has."""


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

    def __init__(self, inner: Any, dtype: type[np.unsignedinteger[Any]]) -> None:
        """Wrap the library's object."""
        self._inner = inner
        self._dtype = dtype

    @property
    def size(self) -> int:
        """Return the size of the vocabulary, added tokens included."""
        return int(self._inner.get_vocab_size(with_added_tokens=True))

    def encode(self, pieces: Sequence[bytes]) -> npt.NDArray[Any]:
        """Return the tokens; bytes that are no UTF-8 become replacement characters."""
        if not pieces:
            return np.zeros(0, dtype=self._dtype)
        found = self._inner.encode_batch([piece.decode("utf-8", errors="replace") for piece in pieces])
        return np.concatenate([np.array(each.ids, dtype=self._dtype) for each in found])

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text, without the library's special tokens."""
        return str(self._inner.decode(list(tokens)))


BYTES = ByteTokenizer()
"""The default."""


def load_tokenizer(path: Path | None, digest: str, vocabulary: int) -> Tokenizer:
    """Return the recipe's tokenizer: bytes where it names none.

    Raises `TokenizerError` where file and recipe differ, `CorpusFormatError` where it has more tokens than the model.
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
    inner = Library.from_str(text.decode())
    size = inner.get_vocab_size(with_added_tokens=True)
    if size > vocabulary:
        raise CorpusFormatError(str(path), f"{size} tokens", f"at most model.vocabulary = {vocabulary}")
    return FileTokenizer(inner, np.uint16 if size <= 1 << 16 else np.uint32)


def compute_tokenizer_digest(path: Path) -> str:
    """Return what a recipe names a tokenizer by, hex. Raises `TokenizerMissingError`."""
    return compute_digest(_read(path)).hex()


def _read(path: Path) -> bytes:
    try:
        return read_input(path, limit_bytes=MAX_TOKENIZER_BYTES)
    except OSError as error:
        raise TokenizerMissingError(f"{path} ({error.strerror})") from error
    except NotAFile as error:
        raise TokenizerMissingError(f"{path} ({error.found})") from error
