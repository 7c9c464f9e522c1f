"""The trace: the share of the exchange that is hidden, torn lines, and its room on the disk."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from training.worker.trace import EventKind, Trace, TraceEvent, compute_overlap, load_trace


def event(kind: EventKind, round_index: int, start: float, end: float) -> TraceEvent:
    return TraceEvent(kind=kind, round=round_index, start_seconds=start, end_seconds=end, wall_seconds=0.0)


def test_overlap_is_the_share_of_the_exchange_under_later_inner_steps() -> None:
    events = [
        event(EventKind.TRAIN, 3, 0, 10),
        event(EventKind.DISPERSE, 3, 10, 11),
        event(EventKind.FETCH, 3, 10.5, 12),  # overlaps the disperse: counted once
        event(EventKind.ATTEST, 3, 13, 14),
        event(EventKind.TRAIN, 4, 11, 20),
        event(EventKind.WAIT, 4, 20, 30),
    ]
    overlap = compute_overlap(events)
    assert overlap.exchange_seconds == pytest.approx(3)
    assert overlap.hidden_seconds == pytest.approx(2)
    assert overlap.share == pytest.approx(2 / 3)
    assert compute_overlap(events, first_round=4).exchange_seconds == 0
    assert compute_overlap(events, stop_round=3).exchange_seconds == 0


def test_an_exchange_under_its_own_rounds_steps_hides_nothing() -> None:
    assert compute_overlap([event(EventKind.TRAIN, 3, 0, 10), event(EventKind.FETCH, 3, 1, 2)]).share == 0


def test_a_torn_line_costs_only_itself(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    trace = Trace(path)
    with trace.span(EventKind.FETCH, 1) as span:
        span.num_bytes = 5
    trace.close()
    path.write_bytes(path.read_bytes() + b'{"kind":"fetch","rou')
    trace = Trace(path)
    trace.record_traffic({"rpc_sent": 7})
    trace.close()
    events = load_trace(path)
    assert [item.kind for item in events] == [EventKind.FETCH, EventKind.TRAFFIC]
    assert events[0].num_bytes == 5
    assert events[1].counters == {"rpc_sent": 7}


def test_a_trace_takes_no_more_than_two_files(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("training.worker.trace.MAX_FILE_BYTES", 2_000)
    trace = Trace(tmp_path / "trace.jsonl")
    for number in range(100):
        trace.record_traffic({"number": number})
    trace.close()
    old, new = (load_trace(tmp_path / name) for name in ("trace.jsonl.previous", "trace.jsonl"))
    numbers = [event.counters["number"] for event in (*old, *new)]
    assert numbers == list(range(numbers[0], 100)), "the newest ones, without a gap"
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 2 * 2_200
    assert len(list(tmp_path.iterdir())) == 2


def test_a_trace_that_has_no_room_for_another_file_goes_on_in_this_one(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("training.worker.trace.MAX_FILE_BYTES", 2_000)
    trace = Trace(tmp_path / "trace.jsonl")
    real_open = Path.open

    def refuse(path: Path, *arguments: Any, **options: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(Path, "open", refuse)
    for number in range(30):
        trace.record_traffic({"number": number})
    monkeypatch.setattr(Path, "open", real_open)
    for number in range(30, 33):
        trace.record_traffic({"number": number})
    trace.close()
    old, new = (load_trace(tmp_path / name) for name in ("trace.jsonl.previous", "trace.jsonl"))
    assert [event.counters["number"] for event in old] == list(range(31))
    assert [event.counters["number"] for event in new] == [31, 32]
