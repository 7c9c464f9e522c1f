"""How deep this process may recurse: the EVM's frames are Python's, and 1,024 of them may stand on each other.

Agreed by all validators only if none of them runs out earlier than the EVM does, so every process that executes
calls this before it executes anything.  What the interpreter allows must fit the machine's stack too: py-evm raises
the limit to 100,000 as it is imported, where a stack of 8 MiB ends long before, and the process with it.  So both
are set here: the limit to what the EVM needs, the stack of each thread to several times what that takes.
"""

from __future__ import annotations

import resource
import sys
import threading

FRAMES_PER_CALL = 12
"""Python frames of one EVM call, measured 8; with room for the handler of a system contract at the end."""
EVM_DEPTH = 1_024
"""Yellow paper, 9.1."""
RECURSION_LIMIT = EVM_DEPTH * FRAMES_PER_CALL + 2_000
"""Frames."""
STACK_BYTES = 64 << 20
"""Of a thread, touched only as it is used: 4.6 KiB a frame, where calls through C slots take up to 0.6 KiB."""


class StackTooSmall(Exception):
    """The machine gives this process less stack than the deepest call may need."""

    def __init__(self, expected_bytes: int, got_bytes: int) -> None:
        """Keep both sizes."""
        super().__init__(
            f"the stack may grow to {got_bytes >> 10} KiB, a node needs {expected_bytes >> 10} KiB;"
            " next: raise the hard"
            f" limit (ulimit -H -s {expected_bytes >> 10}, or LimitSTACK= of a unit) and start again"
        )
        self.expected_bytes = expected_bytes
        self.got_bytes = got_bytes


def allow_evm_depth() -> None:
    """Set the interpreter's limit and the stacks of the main thread and of those to come; raises StackTooSmall."""
    import chain.core.evm.execution  # noqa: F401  what raises the limit must have been imported before

    sys.setrecursionlimit(RECURSION_LIMIT)
    threading.stack_size(STACK_BYTES)
    soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
    if soft == resource.RLIM_INFINITY or soft >= STACK_BYTES:
        return
    if hard != resource.RLIM_INFINITY and hard < STACK_BYTES:
        raise StackTooSmall(STACK_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_STACK, (STACK_BYTES, hard))  # the kernel looks when the stack grows
