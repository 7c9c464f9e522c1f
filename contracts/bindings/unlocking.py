"""Key files as command lines take them: an encrypted one is opened with a password from a file, the environment or a
prompt.  The only place that asks for passwords; libraries are given keys.
"""

from __future__ import annotations

import getpass
import os
import select
import sys
import time
from pathlib import Path

from contracts.bindings.errors import KeyFileError
from contracts.bindings.keys import load_key

PASSWORD_FILE = "ARCHIPELAGO_PASSWORD_FILE"
"""Environment variable: a file whose first line is the password; what a service should use."""
PASSWORD = "ARCHIPELAGO_PASSWORD"
"""Environment variable: the password itself; seen by whoever may look at the process."""


PASSWORD_SECONDS = 30.0
"""Longest wait for the first line of a pipe, such as a shell's <(...): whoever writes may be asked for something."""
MAX_PASSWORD_BYTES = 4_096
"""A first line that is longer is no password: a device has no end."""


def unlock_key(path: Path) -> bytes:
    """Return the key of a key file, asking for the password of an encrypted one; raises KeyFileError."""
    return load_key(path, ask_password)


def ask_password(path: Path) -> str:
    """Return the password of a key file; raises KeyFileError where there is nobody to ask."""
    return _from_environment() or _prompt(f"password of {path}: ", path)


def ask_new_password(path: Path) -> str:
    """Return a password for a new key file, asked for twice."""
    found = _from_environment()
    if found:
        return found
    password = _prompt(f"new password of {path}: ", path)
    if _prompt("once more: ", path) != password:
        raise KeyFileError("the two passwords differ; next: try again")
    return password


def _from_environment() -> str:
    name = os.environ.get(PASSWORD_FILE)
    if name:
        try:
            lines = _read_first_line(Path(name)).decode("utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or (str(error) if isinstance(error, OSError) else "it is no text")
            raise KeyFileError(
                f"{PASSWORD_FILE} names {name}, which can't be read: {why}; next: name a file whose first line it is"
            ) from error
        if not lines or not lines[0]:
            raise KeyFileError(
                f"{PASSWORD_FILE} names {name}, whose first line is empty; next: write the password there"
            )
        return lines[0]
    return os.environ.get(PASSWORD, "")


def _read_first_line(path: Path) -> bytes:
    """Return what a file or pipe begins with, up to the end of a line; raises OSError, after PASSWORD_SECONDS too."""
    deadline = time.monotonic() + PASSWORD_SECONDS
    found = b""
    # A pipe's open would wait for whoever writes, and its first read may wait for ever.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        while b"\n" not in found:
            left = deadline - time.monotonic()
            if left <= 0 or not poll.poll(1000 * left):
                raise TimeoutError(f"nothing whole came within {PASSWORD_SECONDS:.0f} s")
            piece = os.read(descriptor, MAX_PASSWORD_BYTES)
            found += piece
            if not piece:
                break
            if len(found) > MAX_PASSWORD_BYTES and b"\n" not in found:
                raise OSError(f"its first line has more than {MAX_PASSWORD_BYTES} bytes")
    finally:
        os.close(descriptor)
    return found.partition(b"\n")[0]


def _prompt(text: str, path: Path) -> str:
    if not sys.stdin.isatty():
        raise KeyFileError(
            f"{path} is encrypted and there is no terminal to ask for its password; next: set {PASSWORD_FILE} to a"
            " file whose first line it is"
        )
    return getpass.getpass(text)
