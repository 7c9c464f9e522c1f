"""Questions to the chain while a worker starts: asked until answered, as long as its patience lasts (case 27)."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from contracts.bindings.errors import ChainUnreachable, DeadlinePassed, NotJsonRpc, RpcError
from training.worker.errors import ChainSilent

LOG = logging.getLogger("trainer")

RETRY_SECONDS = 0.5
"""Between two tries."""

SAY_AGAIN_SECONDS = 60.0
"""Between two lines about the same wait."""

Answer = TypeVar("Answer")


class Interrupted(Exception):
    """The worker was asked to stop while it waited."""


def ask_patiently(
    question: Callable[[], Answer],
    patience_seconds: float,
    stop: threading.Event,
    *,
    is_first: bool = False,
    next_step: str = "check --chain, then start again",
) -> Answer:
    """Return the chain's answer; what the contract says no to is raised at once.

    Raises `ChainSilent` at the end of the patience, `Interrupted` on a stop, before anything more is asked, and
    `NotJsonRpc` at once where this is the first contact: a URL that was a chain's before is waited for.
    """
    deadline = time.monotonic() + patience_seconds
    say_at = float("-inf")
    while True:
        if stop.is_set():
            raise Interrupted("asked to stop")
        try:
            return question()
        except (ChainUnreachable, RpcError, DeadlinePassed) as error:
            if is_first and isinstance(error, NotJsonRpc):
                raise
            now = time.monotonic()
            if now >= say_at and deadline - now > RETRY_SECONDS:  # in less than that nobody waits
                LOG.warning("waiting up to %.0f s for the chain: %s", max(0.0, deadline - now), error)
                say_at = now + SAY_AGAIN_SECONDS
            if now > deadline:
                raise ChainSilent(str(error), next_step=next_step) from error
            if stop.wait(RETRY_SECONDS):
                raise Interrupted(str(error)) from error
