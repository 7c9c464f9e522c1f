"""One thread for questions that may take long, which never holds up the end of the process.

``ThreadPoolExecutor`` joins its threads at exit; a chain URL that swallows packets would then cost its whole
time-out.  Only work that may be dropped at any point belongs here: questions, no writes.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class DaemonThread(Executor):
    """An executor of one daemon thread, in order of submission."""

    def __init__(self, name: str) -> None:
        """Start the thread."""
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def submit(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run ``function`` when its turn comes."""
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = function(*args, **kwargs)
            except Exception as error:  # noqa: BLE001 - handed over to whoever waits for the future
                future.set_exception(error)
            else:
                future.set_result(result)

        self._queue.put(run)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more work; what runs is not waited for, whatever ``wait`` says."""
        self._queue.put(None)

    def _work(self) -> None:
        while (run := self._queue.get()) is not None:
            run()
