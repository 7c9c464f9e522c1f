"""The thread for questions: answers, expected failures, and faults of ours all reach whoever waits."""

from __future__ import annotations

import threading

import pytest

from storage.core.errors import ChainUnreachable, StorageError
from storage.node.daemon_thread import DaemonThread


def test_answers_and_failures_arrive_in_order() -> None:
    thread = DaemonThread("questions")

    def fail() -> int:
        raise ChainUnreachable("away")

    first, second, third = thread.submit(int, "1"), thread.submit(fail), thread.submit(int, "3")
    assert first.result(5) == 1
    with pytest.raises(ChainUnreachable):
        second.result(5)
    assert third.result(5) == 3
    thread.shutdown()


def test_a_stop_does_not_wait_for_what_runs() -> None:
    thread, go = DaemonThread("questions"), threading.Event()
    running, waiting = thread.submit(go.wait, 60), thread.submit(int, "2")
    waiting.cancel()
    thread.shutdown(wait=True)
    go.set()
    assert running.result(5)
    assert waiting.cancelled()


def test_a_fault_of_ours_leaves_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    ended, seen = threading.Event(), []

    def hook(what: threading.ExceptHookArgs) -> None:
        seen.append(what.exc_type)
        ended.set()

    monkeypatch.setattr(threading, "excepthook", hook)
    thread = DaemonThread("questions")
    with pytest.raises(StorageError, match="broke off"):
        thread.submit(lambda: [][1]).result(5)
    assert ended.wait(5)
    assert seen == [IndexError]
