"""What a worker measures of its link and machine, and that its votes carry what it would change."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from training.worker.pace import Pace
from training.worker.trace import EventKind, Trace, TraceEvent


def event(kind: EventKind, round_index: int, start: float, end: float) -> TraceEvent:
    return TraceEvent(kind=kind, round=round_index, start_seconds=start, end_seconds=end, wall_seconds=0.0)


def test_pace_is_the_median_of_what_the_trace_hears(tmp_path: Path) -> None:
    pace = Pace()
    assert pace.measure() is None
    for index, seconds in enumerate((2.0, 4.0, 60.0)):
        train = event(EventKind.TRAIN, index, 0, 5)
        pace.note(replace(train, counters={"steps": 10}))
        pace.note(event(EventKind.DISPERSE, index, 0, seconds / 2))
        pace.note(event(EventKind.FETCH, index, 10, 10 + seconds / 2))
        pace.note(event(EventKind.WAIT, index, 0, 1000))
    link = pace.measure()
    assert link is not None
    assert (link.exchange_seconds, link.step_seconds) == (4.0, 0.5)
    for index in range(3, 100):
        pace.note(event(EventKind.COMMIT, index, 0, 1))
    newest = pace.measure()
    assert newest is not None
    assert newest.exchange_seconds == 1.0
    trace = Trace(tmp_path / "trace.jsonl", (pace.note,))
    with trace.span(EventKind.TRAIN, 100) as span:
        span.counters = {"steps": 1}
    trace.close()
    newest = pace.measure()
    assert newest is not None
    assert newest.step_seconds == pytest.approx(0.5)
