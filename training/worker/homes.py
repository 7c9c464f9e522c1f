"""Where workers of this machine keep what is theirs: a folder by chain, run and key, unless --home named another."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from da.core.hashing import compute_digest

TOKENIZER_FILE = "tokenizer.json"
"""The run's tokenizer as its worker was given it, so that who trained needs no other copy to use the model."""


def list_homes(run: int, address: str = "*") -> Iterator[Path]:
    """Return the default homes of a run's workers, of one key or all; of any chain, and those by run and key alone."""
    folder = Path.home() / ".archipelago"
    for pattern in (f"run-{run}/{address.lower()}", f"chain-*/run-{run}/{address.lower()}"):
        yield from sorted(folder.glob(pattern))


def find_tokenizer(run: int, digest: str) -> Path | None:
    """Return a tokenizer of this digest that a worker of the run keeps here, None without one."""
    for home in list_homes(run):
        path = home / TOKENIZER_FILE
        try:
            if compute_digest(path.read_bytes()).hex() == digest:
                return path
        except OSError:  # not there, or another person's
            continue
    return None
