"""The gate: each check in turn, all of them run, the failing ones named at the end.

`make test` and `.ci/run` are this.  The tests come last, so that pytest's closing line is the last of its kind.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
"""The project's root."""
BIN = Path(sys.executable).parent
"""Where the virtual environment keeps its commands."""
SLOWEST_SHOWN = 15
"""How many of the slowest tests pytest lists."""
NUM_PROCESSES = 2
"""Processes that share the tests, however many cores there are: tests of whole networks run one at a time anyway."""
STOP_SECONDS = 30.0
"""A stopped pytest gets this long to end the processes of its tests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One command of the gate."""

    name: str
    """What people read."""
    command: tuple[str, ...]
    """The program and its arguments."""
    mend: str
    """The next step when it fails."""


def plan_checks(tests: list[str]) -> tuple[Check, ...]:
    """List the checks in the order in which they run."""
    python = sys.executable
    return (
        Check(name="format", command=(str(BIN / "ruff"), "format", "--check", "."), mend="make format"),
        Check(name="lint", command=(str(BIN / "ruff"), "check", "."), mend="make format mends most of it"),
        Check(name="types", command=(str(BIN / "mypy"),), mend="mend what mypy names above"),
        Check(
            name="layers", command=(str(BIN / "lint-imports"),), mend="see ARCHITECTURE.md: imports go downward only"
        ),
        Check(
            name="generated files",
            command=(python, "-m", "contracts.generate", "--check"),
            mend="python -m contracts.generate, and commit what it writes",
        ),
        Check(
            name="tests",
            command=(
                str(BIN / "pytest"),
                f"--durations={SLOWEST_SHOWN}",
                f"--numprocesses={NUM_PROCESSES}",
                "--no-loadscope-reorder",
                *tests,
            ),
            mend="pytest PATH::NAME -x shows one failure alone",
        ),
    )


def main(arguments: list[str]) -> int:
    """Run every check, report, and return 0 only when all passed."""
    failed: list[Check] = []
    for check in plan_checks(arguments or ["tests"]):
        print(f"== {check.name}: {' '.join((Path(check.command[0]).name, *check.command[1:]))}", flush=True)
        started = time.monotonic()
        code = run(check.command)
        verdict = "passed" if code == 0 else f"FAILED, exit code {code}"
        print(f"== {check.name}: {verdict} in {time.monotonic() - started:.0f} s", flush=True)
        if code in (-signal.SIGINT, 130):
            return 130
        if code != 0:
            failed.append(check)
    for check in failed:
        print(f"gate: {check.name} FAILED; next: {check.mend}", flush=True)
    if not failed:
        print("gate: all checks succeeded", flush=True)
    return 1 if failed else 0


def run(command: tuple[str, ...]) -> int:
    """Run one command with its output in view; on Ctrl-C let it tidy up before giving up on it."""
    environment = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}"}
    try:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL)
    except OSError as error:
        print(f"{command[0]}: {error}", flush=True)
        return 127
    try:
        return process.wait()
    except KeyboardInterrupt:
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
