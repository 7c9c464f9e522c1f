"""Every kernel agrees with reedsolo, or is not used."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator
from unittest import mock

import pytest

from da import kernel as kernel_module
from da.core.errors import KernelError
from da.core.matrix import compute_parity_rows
from da.kernel import BLOCK_BYTES, Kernel, NumpyKernel, check_kernel, get_kernel, open_bundled_isal


@pytest.fixture
def fresh() -> Iterator[None]:
    """Choose the kernel anew, and forget the choice."""
    kernel_module._choose_kernel.cache_clear()
    yield
    kernel_module._choose_kernel.cache_clear()


def test_isal_comes_with_the_installation() -> None:
    check_kernel(open_bundled_isal())
    assert get_kernel().name.startswith("isa-l")


def test_numpy_agrees() -> None:
    check_kernel(NumpyKernel())


LENGTHS = [1, 31, 64, 65, 1000, BLOCK_BYTES, BLOCK_BYTES + 1, 3 * BLOCK_BYTES - 5]
CASES = [(k, n, length) for k, n in [(2, 4), (5, 11), (5, 12)] for length in LENGTHS]


@pytest.mark.parametrize(("num_data", "num_shards", "num_bytes"), [*CASES, (22, 64, 1000)])
def test_kernels_agree_at_any_length(num_data: int, num_shards: int, num_bytes: int) -> None:
    """From seven rows on, ISA-L is driven in blocks."""
    rng = random.Random(num_bytes)
    inputs = [rng.randbytes(num_bytes) for _ in range(num_data)]
    rows = compute_parity_rows(num_data, num_shards)
    results = []
    for kernel in (get_kernel(), NumpyKernel()):
        outputs = [bytearray(b"\xee" * num_bytes) for _ in rows]
        kernel.multiply(rows, inputs, outputs)
        results.append(outputs)
    assert results[0] == results[1]


@pytest.mark.parametrize("make", [open_bundled_isal, NumpyKernel])
def test_invalid_shapes_are_refused_before_memory_is_touched(make: Callable[[], Kernel]) -> None:
    kernel, rows = make(), compute_parity_rows(2, 4)
    good, short, read_only = [bytearray(8)] * 2, [bytearray(8), bytearray(7)], [bytes(8)] * 2
    for inputs, outputs in [(good, short), (short, good), (good, good[:1]), (good[:1], good), (good, read_only)]:
        with pytest.raises(ValueError):
            kernel.multiply(rows, inputs, outputs)


@pytest.mark.parametrize("make", [open_bundled_isal, NumpyKernel])
def test_invalid_blocks_are_refused_before_memory_is_touched(make: Callable[[], Kernel]) -> None:
    sums = make().open_sums(3, 16)
    for num_factors, num_bytes in [(0, 0), (4, 16), (6, 31), (6, 33), (6, 16), (3 * 65, 65 * 16)]:
        with pytest.raises(ValueError):
            sums.add(bytes(num_factors), bytearray(num_bytes))
    assert not sums.values.any()


@pytest.mark.parametrize("num_bytes", [1, 16, 4096])
def test_sums_of_blocks_are_those_of_numpy(num_bytes: int) -> None:
    """Groups of any size one after the other, from memory that may be written and from memory that may not."""
    rng, results = random.Random(num_bytes), []
    groups = [(rng.randbytes(15 * width), rng.randbytes(width * num_bytes)) for width in (64, 1, 63, 48)]
    for kernel in (get_kernel(), NumpyKernel()):
        sums = kernel.open_sums(15, num_bytes)
        for number, (matrix, blocks) in enumerate(groups):
            sums.add(matrix, bytearray(blocks) if number % 2 else blocks)
        results.append(sums.values.tobytes())
    assert results[0] == results[1] != bytes(15 * num_bytes)


def test_a_wrong_kernel_is_not_used(fresh: None, caplog: pytest.LogCaptureFixture) -> None:
    class Wrong(NumpyKernel):
        name = "wrong"

        def multiply(self, rows, inputs, outputs):  # type: ignore[no-untyped-def]
            super().multiply(rows, inputs, outputs)
            outputs[-1][-1] ^= 1

    with pytest.raises(KernelError, match="wrong disagrees"):
        check_kernel(Wrong())

    def missing() -> Kernel:
        raise OSError("no such library")

    with (
        mock.patch.object(kernel_module, "open_bundled_isal", mock.Mock(side_effect=Wrong, __name__="bundled")),
        mock.patch.object(kernel_module, "open_system_isal", mock.Mock(side_effect=missing, __name__="system")),
        caplog.at_level(logging.WARNING),
    ):
        assert get_kernel().name == "numpy"
    assert "wrong disagrees" in caplog.text
    assert "no such library" in caplog.text
