"""How hints name a home: relative where that is shorter, and not at all where it is the default."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from localnet.core.config import DEFAULT_HOME


def home_option(home: str | Path) -> str:
    """Return ` --home HOME` for a command in a hint, empty for the default home."""
    path = Path(home).resolve()
    if path == Path(DEFAULT_HOME).resolve():
        return ""
    return " --home " + shlex.quote(shorten(path))


def shorten(path: str | Path) -> str:
    """Return a path relative to the working directory where it is below it, absolute elsewhere."""
    relative = os.path.relpath(path)
    return os.path.abspath(path) if relative.startswith("..") else relative
