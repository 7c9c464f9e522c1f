"""RPC nodes of tests."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from rpc_stub import Stub


@pytest.fixture
def stub() -> Iterator[Callable[..., Stub]]:
    made: list[Stub] = []

    def make(**options: int) -> Stub:
        made.append(Stub(**options))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def hanging_url() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
