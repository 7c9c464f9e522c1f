"""Getting a blob back when its proofs are lost: shards without roots, some of them wrong, nobody knows which.

Columns that are code words are taken as they are, at the speed of ISA-L. Of those that are not, reedsolo corrects one;
whoever it names is then left out of all of them at once, and what is on the code without them is settled; and so on.
Every column is corrected for up to t errors with e + 2 t <= n - k, e the number of missing shards, and the outcome is
unique. More errors may give wrong bytes without a word: compare a digest where there is one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from da.core.blob import compute_shard_bytes, compute_used_bytes, iterate_stripes
from da.core.errors import NotEnoughShards, WrongShardLength
from da.core.matrix import compute_recovery_rows
from da.kernel import Kernel, get_kernel
from da.words import correct_word

Buffer = bytes | bytearray | memoryview

COLUMNS_AT_ONCE = 1 << 20
"""Bytes of every shard looked at together: bounds the memory to a few times n MiB."""

Columns = np.ndarray[Any, np.dtype[np.uint8]]
"""n rows, one column a code word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """What came of a recovery."""

    data: bytes
    """The blob."""
    wrong_bytes: Mapping[int, int]
    """How many bytes of each shard were wrong; only shards with some."""


def recover_blob(
    shards: Mapping[int, Buffer], *, num_data: int, num_shards: int, size_bytes: int, kernel: Kernel | None = None
) -> Recovery:
    """Return the blob and name the wrong shards.

    Raises:
        NotEnoughShards: fewer than k shards.
        WrongShardLength: a shard of another length than the size demands.
        TooManyErrors: a column is too far from the code; says what would help.
        InvalidScheme: not 1 <= k <= n <= 64, or a shard beyond n.
    """
    expected_bytes = compute_shard_bytes(size_bytes, num_data)
    for index, shard in shards.items():
        if len(shard) != expected_bytes:
            raise WrongShardLength(shard=index, expected=expected_bytes, got=len(shard))
    if len(shards) < num_data:
        raise NotEnoughShards(blob=b"", expected=num_data, got=len(shards), faults=())
    present = tuple(sorted(shards))
    compute_recovery_rows(num_data, num_shards, present[:num_data], present)
    corrector = _Corrector(num_data, num_shards, present, kernel or get_kernel())
    data_shards = np.empty((num_data, expected_bytes), dtype=np.uint8)
    for start in range(0, expected_bytes, COLUMNS_AT_ONCE):
        stop = min(start + COLUMNS_AT_ONCE, expected_bytes)
        columns: Columns = np.zeros((num_shards, stop - start), dtype=np.uint8)
        for index in present:
            columns[index] = np.frombuffer(shards[index], dtype=np.uint8)[start:stop]
        corrector.correct(columns)
        data_shards[:, start:stop] = columns[:num_data]
    parts = []
    for span in iterate_stripes(size_bytes, num_data):
        for index in range(num_data):
            start = span.piece_start
            parts.append(data_shards[index, start : start + compute_used_bytes(span, index)].tobytes())
    wrong = {index: count for index, count in enumerate(corrector.num_wrong) if count}
    return Recovery(data=b"".join(parts), wrong_bytes=wrong)


class _Corrector:
    def __init__(self, num_data: int, num_shards: int, present: tuple[int, ...], kernel: Kernel) -> None:
        self._num_data = num_data
        self._num_shards = num_shards
        self._missing = tuple(index for index in range(num_shards) if index not in present)
        self._kernel = kernel
        self._suspects: tuple[int, ...] = ()
        self.num_wrong = [0] * num_shards

    def correct(self, columns: Columns) -> None:
        """Replace every column by its code word."""
        open_columns = self._settle(columns, np.arange(columns.shape[1]), self._suspects)
        if len(open_columns) and self._suspects:
            open_columns = self._settle(columns, open_columns, ())
        while len(open_columns):
            word = columns[:, open_columns[0]].tobytes()
            self._suspects = correct_word(word, num_data=self._num_data, missing=self._missing).errors
            open_columns = self._settle(columns, open_columns, self._suspects)

    def _settle(self, columns: Columns, where: Any, suspects: tuple[int, ...]) -> Any:
        """Correct those of the columns ``where`` that are on the code without the suspects; return the others."""
        trusted = [i for i in range(self._num_shards) if i not in self._missing and i not in suspects]
        words = np.ascontiguousarray(columns[:, where])
        base = tuple(trusted[: self._num_data])
        rows = compute_recovery_rows(self._num_data, self._num_shards, base, tuple(range(self._num_shards)))
        fixed: Columns = np.empty_like(words)
        self._kernel.multiply(rows, [words[i].data for i in base], [row.data for row in fixed])
        is_settled = (fixed[trusted] == words[trusted]).all(axis=0)
        for index in suspects:
            self.num_wrong[index] += int(np.count_nonzero((fixed[index] != words[index]) & is_settled))
        columns[:, where[is_settled]] = fixed[:, is_settled]
        return where[~is_settled]
