"""Files that hold text in documents: JSONL, parquet, saved data sets (extra ``data``); tokens are in `token_file`.

A document is a string: null, a number, a list or bytes are refused with the place, never written out as Python would.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from da.core.errors import NotAFile
from da.input_file import open_input, read_input
from training.core.errors import CorpusFormatError, CorpusMissingError, MissingExtraError

DOCUMENT_END = b"\n"
"""Behind each document, so that two never run into one another."""

MAX_TEXT_BYTES = 1 << 40
"""What is read must fit the memory; longer texts are token files, which are read by samples."""

_JSON_TYPES = {type(None): "null", bool: "a boolean", int: "a number", float: "a number", list: "a list"}
_JSON_TYPES |= {dict: "an object", str: "a string", bytes: "bytes"}

_DOCUMENT_STEP = "mend it or leave it out of the file, or name another column in the recipe's data.column"
_SHOWN_KEYS = 8
"""Of an object that lacks the column."""


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
    return _read_rows(found, name, column)


def _read_rows(found: Any, name: str, column: str) -> Iterator[bytes]:
    number = 0
    try:
        for row in found:
            number += 1
            yield _encode(row[column], f"{name}, row {number}", column)
    except UnicodeDecodeError as error:
        got = f"what is no UTF-8 behind row {number}"
        raise CorpusFormatError(name, got, "text", next_step=_DOCUMENT_STEP) from error


def _encode(text: object, where: str, column: str) -> bytes:
    """Return a document's bytes. Raises `CorpusFormatError` for what is no text."""
    if not isinstance(text, str):
        got = f"{_JSON_TYPES.get(type(text), type(text).__name__)} under {column!r}"
        raise CorpusFormatError(where, got, "a string", next_step=_DOCUMENT_STEP)
    try:
        return text.encode() + DOCUMENT_END
    except UnicodeEncodeError as error:
        got = f"half a character (a lone surrogate) under {column!r}, at character {error.start}"
        raise CorpusFormatError(where, got, "text that UTF-8 can write", next_step=_DOCUMENT_STEP) from error


def _open(path: Path) -> IO[bytes]:
    try:
        return os.fdopen(open_input(path), "rb")
    except OSError as error:
        raise CorpusMissingError(f"{path} ({error.strerror})") from error
    except NotAFile as error:
        raise CorpusMissingError(f"{path} ({error.found})") from error


def _read_lines(path: Path, column: str) -> Iterator[bytes]:
    with _open(path) as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                where = f"{path}, line {number}"
                yield _encode(_get_column(line, where, column, is_first=number == 1), where, column)


def _get_column(line: bytes, where: str, column: str, *, is_first: bool) -> object:
    """Return what stands in the column of a line. Raises `CorpusFormatError` saying what is wrong with it."""
    expected = f"an object with {column!r}"
    try:
        found = json.loads(line.decode("utf-8-sig" if is_first else "utf-8"))
    except UnicodeDecodeError as error:
        got = f"what is no UTF-8 from its byte {error.start} on"
        raise CorpusFormatError(where, got, expected, next_step="write the file anew as UTF-8") from error
    except json.JSONDecodeError as error:
        got = f"no JSON ({error.msg.removesuffix(' at')} at character {error.pos + 1})"
        raise CorpusFormatError(where, got, expected, next_step=_DOCUMENT_STEP) from error
    except ValueError as error:  # what Python's int() refuses
        raise CorpusFormatError(where, "a number too long to read", expected, next_step=_DOCUMENT_STEP) from error
    except RecursionError as error:
        raise CorpusFormatError(where, "brackets nested too deeply", expected, next_step=_DOCUMENT_STEP) from error
    if not isinstance(found, dict):
        raise CorpusFormatError(where, _JSON_TYPES[type(found)], expected, next_step=_DOCUMENT_STEP)
    if column not in found:
        keys = ", ".join(repr(key[:64]) for key in list(found)[:_SHOWN_KEYS]) or "nothing"
        raise CorpusFormatError(where, f"an object with {keys}", expected, next_step=_DOCUMENT_STEP)
    return found[column]


def _read_parquet(path: Path, column: str) -> Iterator[bytes]:
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise MissingExtraError("data", "pyarrow", str(path)) from error
    number = 0
    with _open(path) as opened:
        try:
            with ParquetFile(opened) as file:
                if column not in file.schema_arrow.names:
                    raise CorpusFormatError(str(path), f"columns {', '.join(file.schema_arrow.names)}", f"{column!r}")
                for batch in file.iter_batches(columns=[column]):
                    for value in batch.column(0):
                        number += 1
                        yield _encode(value.as_py(), f"{path}, row {number}", column)
        except UnicodeDecodeError as error:
            got = f"what is no UTF-8 under {column!r}"
            raise CorpusFormatError(f"{path}, row {number}", got, "a string", next_step=_DOCUMENT_STEP) from error
        except (ArrowException, OSError) as error:  # a damaged page is an OSError, without the file's name
            reason = " ".join(str(error).split())[:200]
            got = f"a damaged page behind row {number} ({reason})" if number else f"no parquet ({reason})"
            raise CorpusFormatError(str(path), got, "a whole parquet file") from error
