"""A worker's state on disk: one file, hashed as a whole, replaced atomically (SPEC, *Worker state*; CASES 7, 9, 75).

Layout: magic 8, body length u64 big-endian, blake3 tag WORKER_STATE of the body 32, body (safetensors).  The
file before stays as ``<name>.previous``, so at any moment at least one of the two is whole.
"""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch

from da.core.hashing import HASH_BYTES, Tag, compute_stream_hash
from da.foreign_json import parse_json
from training.core.errors import WorkerStateDamagedError, WorkerStateMissingError

_MAGIC = b"APWS0001"
_HEADER_BYTES = len(_MAGIC) + 8 + HASH_BYTES

_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""As safetensors names them."""

_CHUNK_BYTES = 1 << 22
"""Read at once to be hashed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaterTensor:
    """A tensor that another process has, until its turn comes to be written."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    fetch: Callable[[], torch.Tensor]
    """Return it."""

    def numel(self) -> int:
        """Return its elements."""
        return math.prod(self.shape)


AnyTensor = torch.Tensor | LaterTensor


def encode_tensors(tensors: Mapping[str, AnyTensor]) -> Iterator[bytes | memoryview]:
    """Return the body in pieces, tensor by tensor, without a copy: the same tensors give the same bytes.

    Wide elements come first, so that every tensor lies at a multiple of its element's size.
    """
    names = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))
    header: dict[str, dict[str, object]] = {}
    at = 0
    for name in names:
        tensor = tensors[name]
        end = at + tensor.numel() * tensor.dtype.itemsize
        header[name] = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for name in names:
        tensor = tensors[name]
        if tensor.numel():
            here = tensor.fetch() if isinstance(tensor, LaterTensor) else tensor
            yield here.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


def compute_body_digest(pieces: Iterable[bytes | memoryview]) -> bytes:
    """Return the hash of the whole worker state."""
    return compute_stream_hash(Tag.WORKER_STATE, pieces)


def write_worker_file(path: Path, tensors: Mapping[str, AnyTensor]) -> None:
    """Write, sync, keep the file before, rename, sync the folder; of tensors elsewhere one at a time is here.

    Raises `OSError` as the system gives it (disk full, permissions); the last good file is then untouched.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(path.name + ".tmp")
    try:
        with fresh.open("wb") as file:
            file.write(bytes(_HEADER_BYTES))
            digest = compute_body_digest(_write_through(file, encode_tensors(tensors)))
            num_bytes = file.tell() - _HEADER_BYTES
            file.seek(0)
            file.write(_MAGIC + num_bytes.to_bytes(8, "big") + digest)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            kept = path.with_name(path.name + ".previous.tmp")
            kept.unlink(missing_ok=True)
            os.link(path, kept)
            kept.replace(previous_path(path))
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)
    _sync_folder(path.parent)


def read_worker_file(path: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of the newest whole file, warning where that is the previous one.

    Raises `WorkerStateMissingError` or `WorkerStateDamagedError`, naming the file.
    """
    if not path.exists() and not previous_path(path).exists():
        raise WorkerStateMissingError(str(path))
    try:
        return _read(path)
    except WorkerStateDamagedError as error:
        try:
            tensors = _read(previous_path(path))
        except WorkerStateDamagedError:
            raise error from None
        warnings.warn(
            f"{error.path}: {error.reason}; using {previous_path(path)} instead", RuntimeWarning, stacklevel=2
        )
        return tensors


def peek_bytes(path: Path, name: str) -> bytes | None:
    """Return one tensor's bytes without reading or checking the rest; None where the file isn't whole enough."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEADER_BYTES + 8)
            length = int.from_bytes(head[_HEADER_BYTES:], "little")
            size = os.fstat(file.fileno()).st_size
            if not head.startswith(_MAGIC) or length > size:
                return None
            begin, end = parse_json(file.read(length))[name]["data_offsets"]
            if not 0 <= begin <= end <= size:
                return None
            file.seek(begin, os.SEEK_CUR)
            return file.read(end - begin)
    except (OSError, ValueError, LookupError, TypeError):
        return None


def previous_path(path: Path) -> Path:
    """Return where the file before is kept."""
    return path.with_name(path.name + ".previous")


def _write_through(file: BinaryIO, pieces: Iterable[bytes | memoryview]) -> Iterator[bytes | memoryview]:
    """Write each piece and pass it on."""
    for piece in pieces:
        file.write(piece)
        yield piece


def _read(path: Path) -> dict[str, torch.Tensor]:
    """Read one file, hashed as a whole before anything of it is believed. Raises `WorkerStateDamagedError`."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            head = file.read(_HEADER_BYTES)
            if len(head) < _HEADER_BYTES or not head.startswith(_MAGIC):
                raise WorkerStateDamagedError(str(path), f"{size} bytes without a whole header of {_HEADER_BYTES}")
            length = int.from_bytes(head[len(_MAGIC) : len(_MAGIC) + 8], "big")
            if size - _HEADER_BYTES != length:
                raise WorkerStateDamagedError(str(path), f"body of {size - _HEADER_BYTES} bytes, expected {length}")
            expected = head[len(_MAGIC) + 8 :]
            got = compute_body_digest(iter(lambda: file.read(_CHUNK_BYTES), b""))
            if got != expected:
                raise WorkerStateDamagedError(str(path), f"digest {got.hex()}, expected {expected.hex()}")
            file.seek(_HEADER_BYTES)
            return _read_tensors(file)
    except FileNotFoundError as error:
        raise WorkerStateDamagedError(str(path), "it is missing") from error


def _read_tensors(file: BinaryIO) -> dict[str, torch.Tensor]:
    """Read the tensors of a body, each into memory of its own."""
    header: dict[str, dict[str, Any]] = parse_json(file.read(int.from_bytes(file.read(8), "little")))
    dtypes = {name: dtype for dtype, name in _DTYPES.items()}
    tensors = {}
    for name, about in sorted(header.items(), key=lambda item: int(item[1]["data_offsets"][1])):
        tensors[name] = torch.empty(about["shape"], dtype=dtypes[about["dtype"]])
        if tensors[name].numel():
            file.readinto(tensors[name].reshape(-1).view(torch.uint8).numpy().data)  # type: ignore[attr-defined]
    return tensors


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
