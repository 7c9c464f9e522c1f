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

from contracts.bindings.errors import BindingError
from storage.core.errors import StorageError

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
                future.set_result(function(*args, **kwargs))
            except (StorageError, BindingError, OSError) as error:
                future.set_exception(error)
            finally:
                if not future.done():
                    # A fault of ours: the traceback goes to stderr with the end of this thread, and whoever waits
                    # for the answer ends too.
                    future.set_exception(StorageError("a question to the chain broke off; see the log"))

        self._queue.put(run)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more work; what runs is not waited for, whatever ``wait`` says."""
        self._queue.put(None)

    def _work(self) -> None:
        while (run := self._queue.get()) is not None:
            run()
