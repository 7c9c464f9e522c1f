"""Run a command that does not outlive the process which started it: `leash.py PARENT_PID COMMAND...`.

Asks the kernel for SIGTERM when the parent dies, however it dies, and then becomes the command (same pid).
The wish survives `execve`.  A parent that died before the wish was made is noticed by comparing its pid.
Standard library only, started with `-I -S`, so that it costs a few milliseconds.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
"""prctl(2): the signal this process gets when its parent's thread dies."""
CANNOT_RUN = 127
"""The shell's exit code for a command that cannot be started."""


def main(arguments: list[str]) -> int:
    """Put the leash on and become the command."""
    parent, command = int(arguments[0]), arguments[1:]
    if sys.platform == "linux" and ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0) != 0:
        print("leash: the kernel refused PR_SET_PDEATHSIG", file=sys.stderr)
        return CANNOT_RUN
    if os.getppid() != parent:
        return 0
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
    return CANNOT_RUN


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
