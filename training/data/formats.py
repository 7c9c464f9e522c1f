"""Files that hold text or tokens: JSONL, parquet, memory-mapped tokens, saved data sets (extra ``data``)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from da.core.errors import NotAFile
from da.input_file import read_input
from training.core.errors import CorpusFormatError, CorpusMissingError, MissingExtraError

DOCUMENT_END = b"\n"
"""Behind each document, so that two never run into one another."""

_SCAN_TOKENS = 1 << 22
"""Tokens looked at once while the largest is searched."""

MAX_TEXT_BYTES = 1 << 40
"""What is read must fit the memory; longer texts are token files, which are mapped."""


def is_token_file(path: Path) -> bool:
    """Say whether a file holds tokens rather than text."""
    return path.suffix == ".bin"


def is_documents(path: Path) -> bool:
    """Say whether a file holds documents in a column."""
    return path.suffix in (".jsonl", ".ndjson", ".parquet") or path.is_dir()


def read_text(path: Path) -> bytes:
    """Return a text file's bytes. Raises `CorpusMissingError`."""
    try:
        return read_input(path, limit_bytes=MAX_TEXT_BYTES)
    except OSError as error:
        raise CorpusMissingError(f"{path} ({error.strerror})") from error
    except NotAFile as error:
        raise CorpusMissingError(f"{path} ({error.found})") from error


def read_documents(path: Path, column: str) -> Iterator[bytes]:
    """Return the documents of a .jsonl, a .parquet or a folder of a saved data set, in order."""
    if not path.exists():
        raise CorpusMissingError(f"{path} (no such file)")
    if path.is_dir():
        return read_dataset(str(path), "", column)
    return _read_parquet(path, column) if path.suffix == ".parquet" else _read_lines(path, column)


def read_dataset(name: str, split: str, column: str) -> Iterator[bytes]:
    """Return the documents of a data set: a folder it was saved to, or by name through the library's own cache."""
    try:
        import datasets
    except ImportError as error:
        raise MissingExtraError("data", "datasets", f"the data set {name!r}") from error
    try:
        found: Any = datasets.load_from_disk(name) if Path(name).is_dir() else datasets.load_dataset(name, split=split)
    except (OSError, ValueError) as error:  # no data set, none of that name, or nobody to ask for it
        raise CorpusMissingError(f"{name} ({error})") from error
    if column not in found.column_names:
        raise CorpusFormatError(name, f"columns {', '.join(found.column_names)}", f"data.column = {column!r}")
    return (str(row[column]).encode() + DOCUMENT_END for row in found)


def map_tokens(path: Path, token_bits: int, vocabulary: int) -> npt.NDArray[Any]:
    """Return a file of little-endian tokens without reading it into memory; every token is below ``vocabulary``."""
    width = token_bits // 8
    size = path.stat().st_size if path.exists() else 0
    if size == 0 or size % width:
        raise CorpusFormatError(str(path), f"{size} bytes", f"a multiple of {width} (data.token_bits = {token_bits})")
    tokens = np.memmap(path, dtype=f"<u{width}", mode="r")
    for at in range(0, tokens.size, _SCAN_TOKENS):
        largest = int(tokens[at : at + _SCAN_TOKENS].max())
        if largest >= vocabulary:
            raise CorpusFormatError(str(path), f"token {largest}", f"below model.vocabulary = {vocabulary}")
    return tokens


def _read_lines(path: Path, column: str) -> Iterator[bytes]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                text = json.loads(line)[column]
            except (ValueError, KeyError, TypeError) as error:
                raise CorpusFormatError(
                    f"{path}, line {number}", "no such object", f"an object with {column!r}"
                ) from error
            yield str(text).encode() + DOCUMENT_END


def _read_parquet(path: Path, column: str) -> Iterator[bytes]:
    try:
        from pyarrow import ArrowInvalid
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise MissingExtraError("data", "pyarrow", str(path)) from error
    try:
        with ParquetFile(path) as file:
            if column not in file.schema_arrow.names:
                raise CorpusFormatError(str(path), f"columns {', '.join(file.schema_arrow.names)}", f"{column!r}")
            for batch in file.iter_batches(columns=[column]):
                for text in batch.column(0).to_pylist():
                    yield str(text).encode() + DOCUMENT_END
    except ArrowInvalid as error:
        raise CorpusFormatError(str(path), "no parquet", "a parquet file") from error
