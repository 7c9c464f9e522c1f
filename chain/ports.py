"""Which ports are free, asked of the kernel."""

from __future__ import annotations

import socket
from contextlib import ExitStack


def find_free_port(host: str = "127.0.0.1") -> int:
    """Return a port that nothing listens on now."""
    return find_free_ports(1, host)[0]


def find_free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Return different ports that nothing listens on now."""
    with ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind((host, 0))
        return [int(probe.getsockname()[1]) for probe in probes]


def is_free(host: str, port: int) -> bool:
    """Say whether nothing listens there now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True


def split_address(address: str) -> tuple[str, int]:
    """Split host:port; an empty host is every interface."""
    host, _, port = address.rpartition(":")
    return host, int(port)
