"""Bodies of temporary shards on a memory file system, while terms and what is promised for longer lie on a disk.

A temporary shard survives a killed process and not a power cut, which is what a memory file system gives (SPEC.md 2).
The home has a link in the place of the body, so whoever looks there finds it, whatever the settings are by then. What
does not fit goes to the home. Invariant: a link is made after its body is whole, and a body that no link names is
removed at start.
"""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable
from pathlib import Path

import blake3


class RamFolder:
    """One home's part of a memory file system; thread-safe."""

    def __init__(self, parent: Path, home: Path, *, max_bytes: int) -> None:
        """Keep at most ``max_bytes`` in a folder of ``parent`` that is named after ``home``; raises ``OSError``."""
        name = blake3.blake3(os.fsencode(home.resolve())).hexdigest()[:16]
        self.path = parent.resolve() / f"archipelago-{name}"
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._coming_bytes = 0
        self._kept = {path.name: path.stat().st_size for path in self.path.iterdir()}

    def get_used_bytes(self) -> int:
        """Return the bytes of all bodies, and of those on their way in."""
        with self._lock:
            return self._coming_bytes + sum(self._kept.values())

    def reserve(self, num_bytes: int) -> tuple[Path, Callable[[], None]] | None:
        """Set room aside for a body; return where it may be written and what gives the room back; None: no room."""
        try:
            stats = os.statvfs(self.path)
        except OSError:  # it is gone
            return None
        with self._lock:
            coming = self._coming_bytes + num_bytes
            if coming + sum(self._kept.values()) > self._max_bytes or coming > stats.f_bavail * stats.f_frsize:
                return None
            self._coming_bytes = coming

        def release() -> None:
            with self._lock:
                self._coming_bytes -= num_bytes

        return self.path / f"{secrets.token_hex(16)}.part", release

    def has(self, path: Path) -> bool:
        """Tell whether a file lies here."""
        return path.parent == self.path

    def publish(self, staged: Path, body: Path, link: Path) -> None:
        """Give a whole file the name of ``body``, and put a link to it in the place of ``body``, by way of ``link``."""
        target = self.path / body.name
        os.rename(staged, target)
        with self._lock:
            self._kept[target.name] = target.stat().st_size
        try:
            os.symlink(target, link)
            os.rename(link, body)
        except BaseException:
            link.unlink(missing_ok=True)
            if find_target(body) != target:
                self.remove(target)
            raise

    def remove(self, target: Path) -> None:
        """Remove a body; one that is not there is no error."""
        target.unlink(missing_ok=True)
        with self._lock:
            self._kept.pop(target.name, None)

    def clear(self, shards: Path) -> int:
        """Remove what no link below ``shards`` names; return how many files."""
        count = 0
        for path in list(self.path.iterdir()):
            if find_target(shards / path.name[:2] / path.name) != path:
                self.remove(path)
                count += 1
        return count


def find_target(body: Path) -> Path | None:
    """Return where a link leads, whether anything is there or not; None for what is no link."""
    try:
        return Path(os.readlink(body))
    except OSError:
        return None
