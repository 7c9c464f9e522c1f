"""A node that refuses a thousand requests a second does not fill its disk with saying so."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from storage.node.sparse_log import LINES, WINDOW_SECONDS, SparseLog
from storage.node.trace import FileTrace


def test_the_same_line_is_counted_and_others_are_not_lost(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    log = SparseLog(logging.getLogger("sparse"), clock=lambda: now[0])
    with caplog.at_level(logging.INFO, logger="sparse"):
        for number in range(1_000):
            log.info("Busy", "refused %d", number)
        log.info("Full", "full")
        said = caplog.messages
        assert said == [*(f"refused {number}" for number in range(LINES)), said[LINES], "full"]
        assert "counted" in said[LINES]
        caplog.clear()
        now[0] += WINDOW_SECONDS
        log.info("Busy", "refused again")
    assert caplog.messages == [f"{1_000 - LINES} more of Busy in the last while", "refused again"]


def test_a_trace_into_a_pipe_holds_nothing_up(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="pipe"):  # nobody reads it
        FileTrace(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    trace = FileTrace(pipe)
    for _ in range(10_000):  # more than a pipe holds
        trace.record("event")
    assert os.read(reader, 16) == b'{"event": "event'
    trace.close()
    os.close(reader)
