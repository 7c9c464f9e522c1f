"""Fixtures of the contract tests; ``driver`` and ``simulator`` lie beside it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from driver import Chain


@pytest.fixture
def chain() -> Chain:
    """A chain with four storage nodes and their first committee."""
    return Chain()
