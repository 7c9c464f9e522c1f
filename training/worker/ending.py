"""How a worker's process ends while an evaluation still computes."""

from __future__ import annotations

import os
import sys
import threading

EVALUATION_THREAD = "evaluation"
"""Name of the thread that an ending process looks for; it computes in torch, for minutes with a large model."""

END_SECONDS = 2.0
"""How long an ending process waits for it."""


def end_process(exit_code: int) -> None:
    """End the process here where an evaluation outlasts it, else return.

    An interpreter that closes under a thread in torch aborts (SIGABRT), though all has gone well.  Everything durable
    must be closed already; standard outputs are flushed here.
    """
    for thread in [each for each in threading.enumerate() if each.name == EVALUATION_THREAD]:
        thread.join(END_SECONDS)
        if thread.is_alive():
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(exit_code)
