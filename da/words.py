"""reedsolo, the oracle of the code and the decoder that finds errors nobody has named (DA.md, *Erasure code*).

Byte c of the n shards is one code word. reedsolo keeps its tables in globals that every new codec rewrites, so it runs
under one lock. Invariant: nobody else in the project calls reedsolo.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from reedsolo import ReedSolomonError, RSCodec

from da.core.errors import TooManyErrors
from da.core.matrix import FIELD_POLYNOMIAL

_lock = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrectedWord:
    """A word brought back onto the code."""

    word: bytes
    """n bytes."""
    errors: tuple[int, ...]
    """Positions, ascending, that were wrong and not named as missing."""


def encode_words(words: Sequence[bytes], *, num_shards: int) -> list[bytes]:
    """Return the code words of ``words``, k bytes each; about 1 MB/s."""
    if not words:
        return []
    num_parity = num_shards - len(words[0])
    with _lock:
        codec = _make_codec(num_parity, num_shards)
        return [bytes(codec.encode(word)) for word in words]


def correct_word(word: bytes, *, num_data: int, missing: Sequence[int]) -> CorrectedWord:
    """Correct unknown errors in ``word`` of n bytes; e missing bytes and t errors need e + 2 t <= n - k.

    Raises:
        TooManyErrors: no code word is that near. With more errors than that a wrong one may be near by chance.
    """
    num_parity = len(word) - num_data
    if len(missing) > num_parity:
        raise TooManyErrors(missing=len(missing), num_parity=num_parity)
    if num_parity == 0:
        return CorrectedWord(word=word, errors=())
    try:
        with _lock:
            codec = _make_codec(num_parity, len(word))
            _, corrected, _ = codec.decode(word, erase_pos=list(missing))
    except ReedSolomonError as error:
        raise TooManyErrors(missing=len(missing), num_parity=num_parity) from error
    fixed = bytes(corrected)
    errors = tuple(at for at in range(len(word)) if fixed[at] != word[at] and at not in missing)
    if len(missing) + 2 * len(errors) > num_parity:
        raise TooManyErrors(missing=len(missing), num_parity=num_parity)
    return CorrectedWord(word=fixed, errors=errors)


def _make_codec(num_parity: int, num_shards: int) -> RSCodec:
    return RSCodec(num_parity, nsize=num_shards, fcr=0, prim=FIELD_POLYNOMIAL, generator=2)
