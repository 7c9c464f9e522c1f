"""Ports: the preferred one where it is free, around a busy one otherwise."""

from __future__ import annotations

import contextlib
import socket

import pytest

from localnet.core.errors import NoFreePort
from localnet.ports import choose_port, is_free

HOST = "127.0.0.1"


@pytest.fixture
def busy_port():
    with socket.socket() as holder:
        holder.bind((HOST, 0))
        holder.listen()
        yield holder.getsockname()[1]


def test_preferred_port_is_kept_where_it_is_free(busy_port: int) -> None:
    free = choose_port(HOST, busy_port)
    assert choose_port(HOST, free) == free


def test_busy_port_is_chosen_around(busy_port: int) -> None:
    assert not is_free(HOST, busy_port)
    assert choose_port(HOST, busy_port) > busy_port


def test_port_promised_to_another_is_chosen_around(busy_port: int) -> None:
    first = choose_port(HOST, busy_port)
    assert choose_port(HOST, busy_port, taken={first}) not in {first, busy_port}


def test_invalid_no_port_left_is_named() -> None:
    with socket.socket() as holder:
        with contextlib.suppress(OSError):  # busy already serves as well
            holder.bind((HOST, 65535))
            holder.listen()
        with pytest.raises(NoFreePort, match="65535"):
            choose_port(HOST, 65535)
