"""Bytes counted where they pass: at the socket.

Whatever a library says about its traffic, these are the bytes handed to and taken from the operating system, request
lines and headers included. Used through aiohttp's ``socket_factory``.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable
from typing import Any


class Traffic:
    """Two counters that only grow; any thread may add to them and read them."""

    __slots__ = ("_lock", "bytes_received", "bytes_sent")

    def __init__(self) -> None:
        self.bytes_sent = 0
        self.bytes_received = 0
        self._lock = threading.Lock()

    def add_sent(self, num_bytes: int) -> None:
        """Count bytes that the system has taken."""
        with self._lock:
            self.bytes_sent += num_bytes

    def add_received(self, num_bytes: int) -> None:
        """Count bytes that the system has given."""
        with self._lock:
            self.bytes_received += num_bytes

    def make_socket_factory(self) -> Callable[[Any], socket.socket]:
        """Return what aiohttp's ``TCPConnector(socket_factory=...)`` wants: address info to socket."""

        def make_socket(address_info: Any) -> socket.socket:
            family, kind, protocol = address_info[:3]
            counted = CountingSocket(family, kind, protocol)
            counted.traffic = self
            return counted

        return make_socket


class CountingSocket(socket.socket):
    """A socket that adds to ``traffic`` whatever passes."""

    traffic: Traffic

    def send(self, data: Any, flags: int = 0) -> int:
        """See ``socket.socket.send``."""
        num_bytes = super().send(data, flags)
        self.traffic.add_sent(num_bytes)
        return num_bytes

    def sendall(self, data: Any, flags: int = 0) -> None:
        """See ``socket.socket.sendall``."""
        super().sendall(data, flags)
        self.traffic.add_sent(memoryview(data).nbytes)

    def sendmsg(self, buffers: Iterable[Any], *args: Any) -> int:
        """See ``socket.socket.sendmsg``; asyncio gathers its buffers with it."""
        num_bytes = super().sendmsg(buffers, *args)
        self.traffic.add_sent(num_bytes)
        return num_bytes

    def recv(self, bufsize: int, flags: int = 0) -> bytes:
        """See ``socket.socket.recv``."""
        data = super().recv(bufsize, flags)
        self.traffic.add_received(len(data))
        return data

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        """See ``socket.socket.recv_into``."""
        num_bytes = super().recv_into(buffer, nbytes, flags)
        self.traffic.add_received(num_bytes)
        return num_bytes
