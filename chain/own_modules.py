"""Our own modules as processes: on the code that runs here, whatever lies in the current folder.

``python -m`` looks for a module in the current folder first, where somebody's ``chain/`` or ``struct.py`` would be run
in our place.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
"""The folder that the packages lie in."""


def make_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module of ours in the current folder."""
    return [sys.executable, "-m" if _is_at_root() else "-Pm", module, *arguments]


def _is_at_root() -> bool:
    """Say whether the current folder holds our own code, which may be installed nowhere else."""
    try:
        return Path.cwd() == ROOT
    except FileNotFoundError:  # it was removed: nothing is found there
        return False
