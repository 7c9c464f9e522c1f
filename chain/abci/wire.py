"""Frames of CometBFT's socket protocol: an unsigned varint length, then a protobuf message (CHAIN.md).

Worked example: the frame of an empty Flush request, ``12 00``, is ``02 12 00``.
"""

from __future__ import annotations

MAX_FRAME_BYTES = 100 << 20
"""CometBFT's own largest block is 100 MiB; a longer length is a broken stream."""

_MAX_LENGTH_BYTES = 5
"""Enough for MAX_FRAME_BYTES."""


class InvalidFrame(ValueError):
    """The stream is no longer in step."""


class FrameReader:
    """Cuts a stream of bytes into messages, wherever the reads fall."""

    __slots__ = ("_buffer", "_wanted_bytes")

    def __init__(self) -> None:
        """Start at a frame's first byte."""
        self._buffer = bytearray()
        self._wanted_bytes = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Add bytes and return the messages that are now whole; raises InvalidFrame."""
        self._buffer += data
        if len(self._buffer) < self._wanted_bytes:
            return []
        buffer = bytes(self._buffer)
        messages: list[bytes] = []
        start = 0
        while True:
            header = _read_length(buffer, start)
            if header is None:
                self._wanted_bytes = 0
                break
            length, payload = header
            if payload + length > len(buffer):
                self._wanted_bytes = payload + length - start
                break
            messages.append(buffer[payload : payload + length])
            start = payload + length
        if start:
            del self._buffer[:start]
        return messages

    @property
    def is_between_frames(self) -> bool:
        """True when no part of a frame waits for the rest."""
        return not self._buffer


def encode_frame(message: bytes) -> bytes:
    """Put the length before a message."""
    length = len(message)
    if length < 0x80:
        return length.to_bytes(1, "big") + message
    header = bytearray()
    while length >= 0x80:
        header.append(length & 0x7F | 0x80)
        length >>= 7
    header.append(length)
    return bytes(header) + message


def _read_length(buffer: bytes, start: int) -> tuple[int, int] | None:
    """Return (length, start of the message), None while the length isn't whole."""
    length = 0
    for index in range(_MAX_LENGTH_BYTES):
        if start + index >= len(buffer):
            return None
        byte = buffer[start + index]
        length |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            if length > MAX_FRAME_BYTES:
                raise InvalidFrame(f"frame of {length} bytes, at most {MAX_FRAME_BYTES}")
            return length, start + index + 1
    raise InvalidFrame(f"length of a frame has more than {_MAX_LENGTH_BYTES} bytes")
