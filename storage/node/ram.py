"""Bodies of temporary shards on a memory file system, while terms and what is promised for longer lie on a disk.

A temporary shard survives a killed process and not a power cut, which is what a memory file system gives (SPEC.md 2).
The home has a link in the place of the body, so whoever looks there finds it, whatever the settings are by then. What
does not fit goes to the home. Invariant: a link is made after its body is whole, and a body that no link names is
removed at start, or at the next one where the file system lets nothing be removed.
"""

from __future__ import annotations

import errno
import logging
import os
import secrets
import stat
import threading
from collections.abc import Callable
from pathlib import Path

from da.input_file import read_input
from storage.whole_file import create_whole

log = logging.getLogger(__name__)

NAME_FILE = "ram"
"""In the home: its folder's name, so that homes of one path, as in two containers, do not share a folder."""

MAX_NAME_BYTES = 4096
"""Of that file: the name takes 28."""

MOUNTS = Path("/proc/self/mountinfo")
"""Linux; a line a mount: number, parent, major:minor, root, place, options, -, kind (proc_pid_mountinfo(5))."""

MEMORY_KINDS = frozenset({"tmpfs", "ramfs"})
"""File systems that are gone with the power, and fast until then."""


class RamFolder:
    """One home's part of a memory file system; thread-safe."""

    def __init__(self, parent: Path, home: Path, *, max_bytes: int) -> None:
        """Keep at most ``max_bytes`` in a folder of ``parent`` that is ``home``'s alone; raises ``OSError``."""
        self.path = parent.resolve() / _provide_name(home)
        self.path.mkdir(mode=0o700, exist_ok=True)  # a missing parent is a mistyped one, or not mounted
        self._identity = _check_own(self.path)
        self._was_there = True
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._coming_bytes = 0
        self._kept = {path.name: path.stat().st_size for path in self.path.iterdir() if path.is_file()}

    def get_used_bytes(self) -> int:
        """Return the bytes of all bodies, and of those on their way in."""
        with self._lock:
            return self._coming_bytes + sum(self._kept.values())

    def reserve(self, num_bytes: int) -> tuple[Path, Callable[[], None]] | None:
        """Set room aside for a body; return where it may be written and what gives the room back; None: no room."""
        try:
            is_there, stats = self.is_there(), os.statvfs(self.path)
        except OSError:  # it went away between the two
            return None
        if not is_there:
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

    def is_there(self) -> bool:
        """Tell whether the folder is the one that was opened: after an unmount, a disk may have one of its name."""
        try:
            found = os.lstat(self.path)
            is_there = (found.st_dev, found.st_ino) == self._identity
        except OSError:
            is_there = False
        if self._was_there and not is_there:
            log.error("%s; new temporary shards go to the home, those that lay there are lost", self.describe_loss())
        self._was_there = is_there
        return is_there

    def describe_loss(self) -> str:
        """Return what to say when it is not there."""
        return f"the memory file system of {self.path} is not there any more: mount it again and restart the node"

    def get_status(self) -> dict[str, int | str | bool]:
        """Return it for the status."""
        return {
            "path": str(self.path),
            "is_there": self.is_there(),
            "used_bytes": self.get_used_bytes(),
            "max_bytes": self._max_bytes,
        }

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
        """Remove a body; one that is not there is no error, and one that can't be removed stays and counts."""
        try:
            target.unlink(missing_ok=True)
        except OSError as error:
            log.warning("a body that nothing names stays in memory: %s", error)
            return
        with self._lock:
            self._kept.pop(target.name, None)

    def clear(self, shards: Path) -> int:
        """Remove files that no link below ``shards`` names; return how many."""
        surplus = [
            path
            for path in self.path.iterdir()
            if path.is_file() and find_target(shards / path.name[:2] / path.name) != path
        ]
        for path in surplus:
            self.remove(path)
        return len(surplus)


def find_target(body: Path) -> Path | None:
    """Return where a link leads, whether anything is there or not; None for what is no link."""
    try:
        return Path(os.readlink(body))
    except OSError:
        return None


def _provide_name(home: Path) -> str:
    """Return the name of a home's folder, drawn when it is first asked for."""
    home.mkdir(parents=True, exist_ok=True)
    path = home / NAME_FILE
    if not path.exists():
        with create_whole(path) as write:
            write(f"archipelago-{secrets.token_hex(8)}".encode())
    name = read_input(path, limit_bytes=MAX_NAME_BYTES).decode("ascii", errors="replace")
    if not name.startswith("archipelago-") or not name.removeprefix("archipelago-").isalnum():
        raise OSError(errno.EINVAL, f"{path} names {name[:40]!r}, expected archipelago-<16 hex>; remove it", str(path))
    return name


def check_memory(path: Path) -> None:
    """Raise ``OSError`` where a folder lies on a disk, as the place of a memory file system does that is not mounted.

    On a system that doesn't list its mounts nothing is known, and nothing is raised.
    """
    device = os.stat(path).st_dev
    try:
        mounts = [line.split() for line in MOUNTS.read_text(encoding="utf-8", errors="replace").splitlines()]
    except OSError:
        return
    number = f"{os.major(device)}:{os.minor(device)}"
    kinds = {fields[fields.index("-") + 1] for fields in mounts if fields[2] == number}
    if not kinds & MEMORY_KINDS:
        what = f"it lies on {', '.join(sorted(kinds)) or 'a disk'}, expected {' or '.join(sorted(MEMORY_KINDS))}"
        raise OSError(errno.EINVAL, f"{what}; is the memory file system mounted?", str(path))


def _check_own(path: Path) -> tuple[int, int]:
    """Return device and number of a folder.

    Raises: PermissionError where others may put or read something there: the parent may be anybody's.
    """
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        kind = "is a folder" if stat.S_ISDIR(found.st_mode) else "is no folder"
        text = f"{path.name} {kind} of user {found.st_uid} with mode {stat.S_IMODE(found.st_mode):03o}"
        raise PermissionError(errno.EPERM, f"{text}, expected a folder of user {os.geteuid()} with mode 700", str(path))
    return found.st_dev, found.st_ino
