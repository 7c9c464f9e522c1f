"""Which release this software is, as CometBFT and Ethereum's clients are told."""

from __future__ import annotations

import platform
from functools import cache
from importlib import metadata


@cache
def get_version() -> str:
    """Return the installed package's version."""
    return metadata.version("archipelago")


@cache
def describe_software() -> str:
    """Return name, version, system and language as web3_clientVersion shows them.

    ``archipelago/v0.1.0/linux-x86_64/python3.11.7``
    """
    system = f"{platform.system().lower()}-{platform.machine()}"
    return f"archipelago/v{get_version()}/{system}/python{platform.python_version()}"
