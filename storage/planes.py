"""Blocks of an archive: XOR with the base, byte planes, zstd; and back (core/delta.py).

A block of n numbers of w bytes becomes w planes of n bytes: all first bytes, all second bytes, ... Bytes at the end
that make no whole number follow as they are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import zstandard

from storage.core.errors import MalformedArchive

LEVEL = 1
"""zstd; higher levels gain little on planes and cost much (DA.md)."""

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class BlockCoder:
    """Encodes and decodes blocks of one archive; one thread at a time."""

    def __init__(self, width: int) -> None:
        """Take numbers of ``width`` bytes."""
        self._width = width
        self._compressor = zstandard.ZstdCompressor(level=LEVEL)
        self._decompressor = zstandard.ZstdDecompressor()

    def encode(self, block: bytes | memoryview, base: bytes | memoryview) -> bytes:
        """Return a zstd frame of ``block``; ``base`` may be shorter, also empty."""
        return self._compressor.compress(_to_planes(_xor(_view(block), _view(base)), self._width).tobytes())

    def decode(self, frame: bytes | memoryview, base: bytes | memoryview, num_bytes: int) -> memoryview:
        """Return the ``num_bytes`` of a block.

        Raises: MalformedArchive.
        """
        block = self.decode_difference(frame, num_bytes)
        add_base(block, base)
        return block

    def decode_difference(self, frame: bytes | memoryview, num_bytes: int) -> memoryview:
        """Return the ``num_bytes`` of a block's difference to its base, writable.

        Raises: MalformedArchive.
        """
        try:
            # zstd makes room for what the frame says it holds, whatever the limit: a liar's frame says exabytes
            declared = zstandard.frame_content_size(frame)
            if declared not in (-1, num_bytes):
                raise MalformedArchive(f"a block that says it is {declared} bytes, expected {num_bytes}")
            planes = self._decompressor.decompress(frame, max_output_size=num_bytes, allow_extra_data=False)
        except zstandard.ZstdError as error:
            raise MalformedArchive(f"a block of {len(frame)} bytes: {error}") from error
        if len(planes) != num_bytes:
            raise MalformedArchive(f"a block of {len(planes)} bytes, expected {num_bytes}")
        return _from_planes(_view(planes), self._width).data


def add_base(difference: memoryview, base: bytes | memoryview) -> None:
    """Make a block of its ``difference`` to ``base``, which may be shorter, where it stands."""
    common = min(len(difference), len(base))
    target = _view(difference)[:common]
    np.bitwise_xor(target, _view(base)[:common], out=target)


def _view(data: bytes | memoryview) -> Bytes:
    return np.frombuffer(data, dtype=np.uint8)


def _xor(left: Bytes, right: Bytes) -> Bytes:
    common = min(len(left), len(right))
    if not common:
        return left
    result = left.copy()
    np.bitwise_xor(left[:common], right[:common], out=result[:common])
    return result


def _to_planes(block: Bytes, width: int) -> Bytes:
    whole = len(block) // width * width
    planes = np.ascontiguousarray(block[:whole].reshape(-1, width).T).reshape(-1)
    return planes if whole == len(block) else np.concatenate((planes, block[whole:]))


def _from_planes(planes: Bytes, width: int) -> Bytes:
    num_numbers = len(planes) // width
    block = np.empty_like(planes)
    for index in range(width):  # twice as fast as turning the whole
        block[index : num_numbers * width : width] = planes[index * num_numbers : (index + 1) * num_numbers]
    block[num_numbers * width :] = planes[num_numbers * width :]
    return block
