"""The fast arithmetic of the erasure code: matrix rows times byte vectors over GF(2^8).

ISA-L does it at memory speed. It comes inside pyeclib's wheel; a system ``libisal.so.2`` will do as well, and numpy
does it anywhere, some 50 times slower (DA.md, *Erasure code*). ISA-L works on memory in place and releases the GIL.
Invariant: at first use a kernel must agree with reedsolo, or it isn't used.
"""

from __future__ import annotations

import ctypes
import importlib.util
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Protocol

import numpy as np

from da.core.errors import KernelError
from da.core.matrix import Rows, compute_parity_rows, compute_recovery_rows, multiplication_tables
from da.words import encode_words

Buffer = bytes | bytearray | memoryview

BLOCK_BYTES = 65536
"""With more rows than ISA-L makes in one pass, the inputs are walked in blocks that stay in the cache (DA.md)."""

MAX_ROWS_AT_ONCE = 6
"""Rows that ISA-L makes in one pass over the inputs."""

TABLE_BYTES = 32
"""What ISA-L makes of one coefficient."""

MAX_BLOCKS = 64
"""Inputs of one call; ISA-L has been seen to crash with 128."""

SELF_TEST_BYTES = 256
"""Bytes compared with reedsolo at first use; reedsolo does about 1 MB/s, so this takes no time."""

_SYSTEM_LIBRARY = "libisal.so.2"

_log = logging.getLogger(__name__)

_choice = threading.Lock()
"""One self-test is enough."""


Array = np.ndarray[tuple[int], np.dtype[np.uint8]]

Product = Callable[[int, int], None]
"""Multiplies columns start to stop (half-open) of vectors that were bound before."""


class Kernel(Protocol):
    """Multiplies matrices with byte vectors."""

    @property
    def name(self) -> str:
        """For people: which implementation this is."""
        ...

    def multiply(self, rows: Rows, inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> None:
        """Set ``outputs[r]`` to the sum over j of ``rows[r][j] * inputs[j]``; all of one length, none overlapping."""
        ...

    def bind(self, rows: Rows, inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> Product:
        """Return what multiplies any range of columns of these vectors: most of the preparation is done once."""
        ...

    def open_sums(self, num_rows: int, num_bytes: int) -> BlockSums:
        """Return ``num_rows`` sums of ``num_bytes`` each, all zero, to which blocks can be added."""
        ...


class BlockSums(Protocol):
    """Sums of many byte vectors of one length, each times factors of its own."""

    @property
    def values(self) -> Array:
        """The sums, one after the other."""
        ...

    def add(self, matrix: bytes, blocks: Buffer) -> None:
        """Add at most 64 ``blocks`` that lie one after the other; ``matrix`` has a row of factors for each sum."""
        ...


def get_kernel() -> Kernel:
    """Return the fastest kernel that passes its self-test here; chosen once, whichever thread asks first.

    Raises:
        KernelError: not even numpy agrees with reedsolo.
    """
    with _choice:
        return _choose_kernel()


@cache
def _choose_kernel() -> Kernel:
    reasons: list[str] = []
    for open_kernel in (open_bundled_isal, open_system_isal, NumpyKernel):
        try:
            kernel = open_kernel()
            check_kernel(kernel)
        except (OSError, AttributeError, KernelError) as error:
            reasons.append(f"{open_kernel.__name__}: {error}")
            continue
        if isinstance(kernel, NumpyKernel):
            _log.warning("no usable ISA-L (%s); coding with numpy, about 50 times slower", "; ".join(reasons))
        return kernel
    raise KernelError(f"no arithmetic agrees with reedsolo: {'; '.join(reasons)}")


def check_kernel(kernel: Kernel) -> None:
    """Compare ``kernel`` with reedsolo: parity column by column, short vectors, and recovery.

    Raises:
        KernelError: it disagrees.
    """
    num_data, num_parity = 8, 7
    num_shards = num_data + num_parity
    pieces = [bytes((131 * i + 17 * j + (i * j >> 3)) & 255 for j in range(SELF_TEST_BYTES)) for i in range(num_data)]
    words = encode_words([bytes(column) for column in zip(*pieces, strict=True)], num_shards=num_shards)
    shards = [bytes(word[index] for word in words) for index in range(num_shards)]
    for num_bytes in (SELF_TEST_BYTES, 100, 33, 15, 1):
        parity = _multiply_fresh(kernel, compute_parity_rows(num_data, num_shards), [p[:num_bytes] for p in pieces])
        if parity != [shard[:num_bytes] for shard in shards[num_data:]]:
            raise KernelError(f"{kernel.name} disagrees with reedsolo on parity of {num_bytes} bytes")
    present = tuple(range(num_parity, num_shards))
    rows = compute_recovery_rows(num_data, num_shards, present, tuple(range(num_parity)))
    if _multiply_fresh(kernel, rows, [shards[index] for index in present]) != shards[:num_parity]:
        raise KernelError(f"{kernel.name} does not recover lost pieces")


class IsalKernel:
    """ISA-L through ctypes."""

    def __init__(self, path: str) -> None:
        self.name = f"isa-l ({Path(path).name})"
        library = ctypes.CDLL(path)
        self._init_tables = library.ec_init_tables
        self._init_tables.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
        self._init_tables.restype = None
        self._encode = library.ec_encode_data
        self._encode.argtypes = [ctypes.c_int] * 3 + [ctypes.c_void_p] * 3
        self._encode.restype = None
        self._entries = self._make_entries()

    def multiply(self, rows: Rows, inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> None:
        """See ``Kernel``."""
        product = self.bind(rows, inputs, outputs)
        num_bytes = memoryview(inputs[0]).nbytes if inputs else 0
        for start, stop in _blocks(num_bytes, BLOCK_BYTES if len(rows) > MAX_ROWS_AT_ONCE else _MAX_INT):
            product(start, stop)

    def bind(self, rows: Rows, inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> Product:
        """See ``Kernel``. The tables are made anew each time: they differ between CPUs and cost microseconds."""
        num_bytes = _check_shapes(rows, inputs, outputs)
        num_inputs, num_rows, encode = len(inputs), len(rows), self._encode
        tables = self._make_tables(rows, num_inputs)
        tables_at = tables.ctypes.data
        in_pointers, out_pointers = _addresses(inputs), _addresses(outputs)
        kept = (inputs, outputs, tables)

        def multiply_range(start: int, stop: int) -> None:
            assert 0 <= start <= stop <= num_bytes, f"columns {start} to {stop} of {num_bytes}, {len(kept)} arrays kept"
            if num_rows and start < stop:
                in_at, out_at = in_pointers + np.uint64(start), out_pointers + np.uint64(start)
                encode(stop - start, num_inputs, num_rows, tables_at, in_at.ctypes.data, out_at.ctypes.data)

        return multiply_range

    def open_sums(self, num_rows: int, num_bytes: int) -> BlockSums:
        """See ``Kernel``."""
        return _IsalSums(self._encode, self._entries, num_rows, num_bytes)

    def _make_tables(self, rows: Rows, num_inputs: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        tables = np.empty(TABLE_BYTES * num_inputs * len(rows), dtype=np.uint8)  # ctypes' own arrays take 100 us
        if rows:
            self._init_tables(num_inputs, len(rows), b"".join(rows), tables.ctypes.data)
        return tables

    def _make_entries(self) -> np.ndarray[tuple[int, int], np.dtype[np.uint64]]:
        """Return what the library makes of each coefficient: the tables of a matrix are these, one after the other.

        Raises:
            KernelError: they are not, in this library.
        """
        num_entries = 256
        every = self._make_tables((bytes(range(num_entries)),), num_entries)
        entries = every.view(np.uint64).reshape(num_entries, -1)
        backwards = self._make_tables(tuple(bytes((255 - value, value)) for value in range(num_entries)), 2)
        factors = [factor for value in range(num_entries) for factor in (255 - value, value)]
        if not np.array_equal(entries[factors].view(np.uint8).ravel(), backwards):
            raise KernelError(f"{self.name}: tables of a matrix are not the tables of its coefficients")
        return entries


class NumpyKernel:
    """Table look-up and xor."""

    name = "numpy"

    def multiply(self, rows: Rows, inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> None:
        """See ``Kernel``."""
        num_bytes = _check_shapes(rows, inputs, outputs)
        if not rows or not num_bytes:
            return
        tables = np.frombuffer(b"".join(multiplication_tables()), dtype=np.uint8).reshape(256, 256)
        in_arrays = [np.frombuffer(data, dtype=np.uint8) for data in inputs]
        out_arrays = [np.frombuffer(data, dtype=np.uint8) for data in outputs]
        for start, stop in _blocks(num_bytes, BLOCK_BYTES):
            for row, out in zip(rows, out_arrays, strict=True):
                total = np.zeros(stop - start, dtype=np.uint8)
                for factor, data in zip(row, in_arrays, strict=True):
                    if factor:
                        total ^= tables[factor][data[start:stop]]
                out[start:stop] = total

    def bind(self, rows: Rows, inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> Product:
        """See ``Kernel``."""
        in_views, out_views = [memoryview(data) for data in inputs], [memoryview(data) for data in outputs]
        return lambda start, stop: self.multiply(
            rows, [view[start:stop] for view in in_views], [view[start:stop] for view in out_views]
        )

    def open_sums(self, num_rows: int, num_bytes: int) -> BlockSums:
        """See ``Kernel``."""
        return _NumpySums(self, num_rows, num_bytes)


class _IsalSums:
    """See ``BlockSums``. A node adds every 256 KiB of a shard, so all that lasts is prepared once."""

    def __init__(
        self,
        encode: Callable[[int, int, int, int, int, int], None],
        entries: np.ndarray[tuple[int, int], np.dtype[np.uint64]],
        num_rows: int,
        num_bytes: int,
    ) -> None:
        self.values: Array = np.zeros(num_rows * num_bytes, dtype=np.uint8)
        self._encode, self._entries = encode, entries
        self._num_rows, self._num_bytes = num_rows, num_bytes
        self._products = np.empty_like(self.values)
        self._tables = np.empty((MAX_BLOCKS * num_rows, entries.shape[1]), dtype=np.uint64)
        self._in_pointers = np.empty(MAX_BLOCKS, dtype=np.uint64)
        self._out_pointers = _compute_offsets(num_rows, num_bytes) + np.uint64(self._products.ctypes.data)
        self._addresses = [array.ctypes.data for array in (self._tables, self._in_pointers, self._out_pointers)]

    def add(self, matrix: bytes, blocks: Buffer) -> None:
        """See ``BlockSums``."""
        num_blocks = _check_blocks(matrix, blocks, self._num_rows, self._num_bytes)
        factors = np.frombuffer(matrix, dtype=np.uint8)
        self._entries.take(factors, axis=0, mode="clip", out=self._tables[: len(factors)])
        np.add(
            _compute_offsets(num_blocks, self._num_bytes),
            np.uint64(_find_address(blocks)),
            out=self._in_pointers[:num_blocks],
        )
        self._encode(self._num_bytes, num_blocks, self._num_rows, *self._addresses)
        np.bitwise_xor(self.values, self._products, out=self.values)


class _NumpySums:
    """See ``BlockSums``."""

    def __init__(self, kernel: NumpyKernel, num_rows: int, num_bytes: int) -> None:
        self.values: Array = np.zeros(num_rows * num_bytes, dtype=np.uint8)
        self._kernel = kernel
        self._num_rows, self._num_bytes = num_rows, num_bytes

    def add(self, matrix: bytes, blocks: Buffer) -> None:
        """See ``BlockSums``."""
        num_blocks, width = _check_blocks(matrix, blocks, self._num_rows, self._num_bytes), self._num_bytes
        view, products = memoryview(blocks), np.empty_like(self.values)
        self._kernel.multiply(
            tuple(matrix[at : at + num_blocks] for at in range(0, len(matrix), num_blocks)),
            [view[at : at + width] for at in range(0, len(view), width)],
            [products.data[at : at + width] for at in range(0, len(products), width)],
        )
        self.values ^= products


def open_bundled_isal() -> IsalKernel:
    """Return the ISA-L inside pyeclib's wheel; raises ``OSError`` where there is none."""
    spec = importlib.util.find_spec("pyeclib")
    if spec is None or spec.origin is None:
        raise OSError("pyeclib is not installed")
    libraries = sorted((Path(spec.origin).parent.parent / "pyeclib.libs").glob("libisal*"))
    if not libraries:
        raise OSError("pyeclib brings no libisal on this platform")
    return IsalKernel(str(libraries[0]))


def open_system_isal() -> IsalKernel:
    """Return the system's ISA-L; raises ``OSError`` where there is none."""
    return IsalKernel(_SYSTEM_LIBRARY)


_MAX_INT = 2**31 - BLOCK_BYTES
"""ISA-L takes lengths as C int."""


def _check_shapes(rows: Rows, inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> int:
    if len(rows) != len(outputs) or any(len(row) != len(inputs) for row in rows):
        raise ValueError(f"{len(rows)} rows for {len(inputs)} inputs and {len(outputs)} outputs")
    lengths = {memoryview(data).nbytes for data in (*inputs, *outputs)}
    if len(lengths) > 1:
        raise ValueError(f"vectors of different lengths: {sorted(lengths)}")
    if any(memoryview(data).readonly for data in outputs):
        raise ValueError("an output is read-only")
    return lengths.pop() if lengths else 0


def _check_blocks(matrix: bytes, blocks: Buffer, num_rows: int, num_bytes: int) -> int:
    """Return the number of blocks."""
    num_blocks, odd_factors = divmod(len(matrix), num_rows)
    if odd_factors or not 0 < num_blocks <= MAX_BLOCKS:
        raise ValueError(f"{len(matrix)} factors for {num_rows} rows of at most {MAX_BLOCKS}")
    if memoryview(blocks).nbytes != num_blocks * num_bytes:
        raise ValueError(f"{memoryview(blocks).nbytes} bytes for {num_blocks} blocks of {num_bytes}")
    return num_blocks


@cache
def _compute_offsets(num_blocks: int, num_bytes: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    """Return where blocks of ``num_bytes`` begin that lie one after the other; few different ones are asked for."""
    return np.arange(num_blocks, dtype=np.uint64) * np.uint64(num_bytes)


def _find_address(buffer: Buffer) -> int:
    view = memoryview(buffer)
    if not view.readonly and view.nbytes:
        return ctypes.addressof(ctypes.c_char.from_buffer(view))  # four times as fast as numpy's way
    address: int = np.frombuffer(view, dtype=np.uint8).ctypes.data
    return address


def _addresses(buffers: Sequence[Buffer]) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    return np.array([_find_address(data) for data in buffers], dtype=np.uint64)


def _blocks(num_bytes: int, block_bytes: int) -> Iterator[tuple[int, int]]:
    for start in range(0, num_bytes, block_bytes):
        yield start, min(start + block_bytes, num_bytes)


def _multiply_fresh(kernel: Kernel, rows: Rows, inputs: Sequence[bytes]) -> list[bytes]:
    outputs = [bytearray(len(inputs[0])) for _ in rows]
    kernel.multiply(rows, inputs, outputs)
    return [bytes(output) for output in outputs]
