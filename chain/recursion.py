"""How deep this process may recurse: the EVM's frames are Python's, and 1,024 of them may stand on each other.

Agreed by all validators only if none of them runs out earlier than the EVM does, so every process that executes
calls this before it executes anything.
"""

from __future__ import annotations

import sys

FRAMES_PER_CALL = 12
"""Python frames of one EVM call, measured 8; with room for the handler of a system contract at the end."""
EVM_DEPTH = 1_024
"""Yellow paper, 9.1."""


def allow_evm_depth() -> None:
    """Raise the interpreter's limit to what the deepest EVM call needs."""
    sys.setrecursionlimit(max(sys.getrecursionlimit(), EVM_DEPTH * FRAMES_PER_CALL + 2_000))
