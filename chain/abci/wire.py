"""Frames of CometBFT's socket protocol: an unsigned varint length, then a protobuf message (CHAIN.md).

Worked example: the frame of an empty Flush request, ``12 00``, is ``02 12 00``.
"""

from __future__ import annotations

MAX_FRAME_BYTES = 100 << 20
"""CometBFT's own largest block is 100 MiB; a longer length is a broken stream."""

_MAX_LENGTH_BYTES = 5
"""Enough for MAX_FRAME_BYTES."""

_CHECK_TAG = b"\x42"
"""Request.check_tx, field 8."""
_TRANSACTION_TAG = b"\x0a"
"""RequestCheckTx.tx, field 1."""
_BYTES = tuple(bytes((value,)) for value in range(0x80))


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
        size = len(buffer)
        messages: list[bytes] = []
        start = 0
        while True:
            if start + 1 < size and buffer[start] < 0x80:  # the common case, without a call
                length, payload = buffer[start], start + 1
            else:
                header = _read_length(buffer, start)
                if header is None:
                    self._wanted_bytes = 0
                    break
                length, payload = header
            stop = payload + length
            if stop > size:
                self._wanted_bytes = stop - start
                break
            messages.append(buffer[payload:stop])
            start = stop
        if start:
            del self._buffer[:start]
        return messages

    @property
    def is_between_frames(self) -> bool:
        """True when no part of a frame waits for the rest."""
        return not self._buffer


def encode_frame(message: bytes) -> bytes:
    """Put the length before a message."""
    return encode_length(len(message)) + message


def encode_length(length: int) -> bytes:
    """Return an unsigned varint."""
    if length < 0x80:
        return _BYTES[length]
    encoded = bytearray()
    while length >= 0x80:
        encoded.append(length & 0x7F | 0x80)
        length >>= 7
    encoded.append(length)
    return bytes(encoded)


def encode_answer(tag: bytes, payload: bytes) -> bytes:
    """Return the frame of a Response whose one field is a message, given the field's tag and the encoded message."""
    head = tag + encode_length(len(payload))
    return encode_length(len(head) + len(payload)) + head + payload


def read_plain_check(message: bytes) -> bytes:
    """Return the transaction of a Request that holds a CheckTx with that and nothing else; empty for any other.

    ``42 LENGTH 0a LENGTH transaction``: the one request of which there are thousands a second.
    """
    if message[:1] != _CHECK_TAG:
        return b""
    size = len(message)
    if 4 < size < 0x82 and message[1] == size - 2 and message[2] == _TRANSACTION_TAG[0] and message[3] == size - 4:
        return message[4:]  # a transfer: lengths of one byte
    try:
        body = _read_length(message, 1)
        if body is None or body[0] != size - body[1] or message[body[1] : body[1] + 1] != _TRANSACTION_TAG:
            return b""
        transaction = _read_length(message, body[1] + 1)
    except InvalidFrame:  # protobuf says what is wrong
        return b""
    if transaction is None or transaction[0] != size - transaction[1]:
        return b""
    return message[transaction[1] :]


def _read_length(buffer: bytes, start: int) -> tuple[int, int] | None:
    """Return (length, start of the message), None while the length isn't whole."""
    if start < len(buffer) and buffer[start] < 0x80:
        return buffer[start], start + 1
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
