"""Questions to the chain while a worker starts: asked until answered, as long as its patience lasts (case 27)."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from contracts.bindings.errors import ChainUnreachable, DeadlinePassed, RpcError
from training.worker.errors import ChainSilent

LOG = logging.getLogger("trainer")

RETRY_SECONDS = 0.5
"""Between two tries."""

Answer = TypeVar("Answer")


class Interrupted(Exception):
    """The worker was asked to stop while it waited."""


def ask_patiently(question: Callable[[], Answer], patience_seconds: float, stop: threading.Event) -> Answer:
    """Return the chain's answer; what the contract says no to is raised at once.

    Raises `ChainSilent` at the end of the patience, `Interrupted` on a stop.
    """
    deadline = time.monotonic() + patience_seconds
    has_said = False
    while True:
        try:
            return question()
        except (ChainUnreachable, RpcError, DeadlinePassed) as error:
            if not has_said:
                LOG.warning("waiting up to %.0f s for the chain: %s", patience_seconds, error)
                has_said = True
            if time.monotonic() > deadline:
                raise ChainSilent(str(error), next_step="check --chain, then start again") from error
            if stop.wait(RETRY_SECONDS):
                raise Interrupted(str(error)) from error
