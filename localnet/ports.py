"""Free ports: the well-known one where it is free, the next free one otherwise."""

from __future__ import annotations

import socket
from collections.abc import Collection

from localnet.core.errors import NoFreePort

NUM_TRIED = 200
"""How many ports after the preferred one are tried."""


def is_free(host: str, port: int) -> bool:
    """Say whether ``port`` can be bound on ``host`` now."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True


def choose_port(host: str, preferred: int, taken: Collection[int] = ()) -> int:
    """Return ``preferred``, or the first free port after it that is not in ``taken``.

    Raises NoFreePort.
    """
    last = min(preferred + NUM_TRIED, 65535)
    for port in range(preferred, last + 1):
        if port not in taken and is_free(host, port):
            return port
    raise NoFreePort(host, preferred, last)
